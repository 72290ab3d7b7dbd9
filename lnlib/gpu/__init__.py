"""The fused CUDA kernels: on a GPU through CuPy, compiled without one, or emulated on this CPU."""

from ..emulator import EmulationError, Launch, Traffic, Unsupported, without_comments
from ..emulator import available as emulator_available
from ..emulator import status as emulator_status
from .emulated import emulate, emulate_backward, emulate_forward
from .listing import function_source, listing, read_source
from .live import available, layer_norm_backward, layer_norm_forward, status
from .nvrtc import Compiled, compile
from .passes import Cache
from .residency import Occupancy, occupancy
