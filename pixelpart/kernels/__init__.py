"""Operations that the attack runs through most, each in one kernel on a GPU and by plain means elsewhere."""

from pixelpart.kernels.convolution import (
    conv,
    conv_add_relu,
    conv_back,
    conv_relu,
    rectified_gradient,
    residual,
    strided_gradient,
)
from pixelpart.kernels.stem import stem

__all__ = [
    "conv",
    "conv_add_relu",
    "conv_back",
    "conv_relu",
    "rectified_gradient",
    "residual",
    "stem",
    "strided_gradient",
]
