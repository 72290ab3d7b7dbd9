"""The fused CUDA kernels: on a GPU through CuPy, compiled without one, or emulated on this CPU."""

from .emulator import Traffic, emulate_backward, emulate_forward
from .launch import available, layer_norm_backward, layer_norm_forward, status
from .listing import listing
from .nvrtc import Compiled, compile
from .passes import Cache, read_source
from .residency import Occupancy, occupancy
from .translate import EmulationError, Unsupported
