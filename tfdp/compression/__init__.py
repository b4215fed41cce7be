"""Compressions of gradients for the way between replicas.

`DataParallelStrategy(compression=...)` takes one. It compresses the gradients that reach an
optimizer unchanged; replicas send everything else uncompressed.
"""

from tfdp.communication.collectives import Transport
from tfdp.compression.between_hosts import BetweenHosts
from tfdp.compression.cast import Cast
from tfdp.compression.error_feedback import RESIDUAL, ErrorFeedback
from tfdp.compression.int8 import Int8
from tfdp.compression.momentum_correction import MomentumCorrection
from tfdp.compression.power_sgd import PowerSGD
from tfdp.compression.random_k import RandomK
from tfdp.compression.sign import Sign
from tfdp.compression.sum_compression import Compression
from tfdp.compression.top_k import TopK
from tfdp.compression.update_compression import (
    AbstractLossyCompression,
    Bucket,
    Slot,
    Sums,
    UpdateCompression,
)

__all__ = [
    "RESIDUAL",
    "AbstractLossyCompression",
    "BetweenHosts",
    "Bucket",
    "Cast",
    "Compression",
    "ErrorFeedback",
    "Int8",
    "MomentumCorrection",
    "PowerSGD",
    "RandomK",
    "Sign",
    "Slot",
    "Sums",
    "TopK",
    "Transport",
    "UpdateCompression",
]
