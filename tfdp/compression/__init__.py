"""Compressions: what gradients become while they travel between replicas.

`DataParallelStrategy(compression=...)` takes one. Gradients that an optimizer gets untouched are
compressed; everything else that replicas send each other stays whole.
"""

from tfdp.collectives import Transport
from tfdp.compression.base import Compression
from tfdp.compression.cast import Cast

__all__ = ["Cast", "Compression", "Transport"]
