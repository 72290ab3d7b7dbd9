"""The fused CUDA kernels: on a GPU through CuPy, compiled without one, or emulated on this CPU."""

from .emulator import EmulationError, Traffic, emulate_backward, emulate_forward
from .passes import Cache

__all__ = ["Cache", "EmulationError", "Traffic", "emulate_backward", "emulate_forward"]
