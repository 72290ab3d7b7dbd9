"""The support module of the course: the layer, and what its lessons check and measure it with."""

from .gradcheck import adjoint_check, directional_check, gradcheck
from .layernorm import (
    LayerNormCache,
    layer_norm_backward,
    layer_norm_backward_staged,
    layer_norm_forward,
)
