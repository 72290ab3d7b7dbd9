"""The support module of the course: everything that a lesson needs twice."""

from .gradcheck import adjoint_check, directional_check, gradcheck
from .layernorm import (
    LayerNormCache,
    layer_norm_backward,
    layer_norm_backward_staged,
    layer_norm_forward,
)
