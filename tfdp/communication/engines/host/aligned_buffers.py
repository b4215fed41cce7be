"""Buffers in host memory that TensorFlow takes without a copy, for they are aligned as it wants."""

import math

import numpy as np

# TensorFlow takes an array that lies at a multiple of this many bytes as a tensor without a copy.
_ALIGNMENT = 64

# To align an array takes longer than TensorFlow's copy of one below this size.
_SMALL_BYTES = 2**14


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array without values that TensorFlow takes without a copy, if it is large.

    >>> empty((300, 50), np.dtype("float32")).ctypes.data % 64
    0
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < _SMALL_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(size_bytes + _ALIGNMENT, np.uint8)
    # `memory.ctypes` would take longer than all else here.
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size_bytes].view(dtype).reshape(shape)
