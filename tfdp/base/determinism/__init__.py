"""Determinism: runs that repeat bit for bit by `tfdp.enable_determinism`, and questions about them.

Importing this package loads neither TensorFlow nor Keras.
"""

from typing import TYPE_CHECKING

from tfdp.base.determinism.process_seed import (
    are_operations_deterministic,
    chosen_seed,
    note_strategy_made,
    seeds,
)
from tfdp.base.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tfdp.base.determinism.clock import seconds_in_graph
    from tfdp.base.determinism.enable import enable_determinism

__all__ = [
    "are_operations_deterministic",
    "chosen_seed",
    "enable_determinism",
    "note_strategy_made",
    "seconds_in_graph",
    "seeds",
]

_LAZY = {
    "enable_determinism": ("tfdp.base.determinism.enable", "enable_determinism"),
    "seconds_in_graph": ("tfdp.base.determinism.clock", "seconds_in_graph"),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
