"""Custom torch ops for the convolutions of an attack: one kernel each on a GPU, plain torch elsewhere."""

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
