"""Makes Keras' trainer, losses, optimizers, metrics and layers right under many replicas.

Each hook wraps one function of Keras or TensorFlow, and changes nothing but under a strategy of
tfdp; those of `feeding`, for pipelines, work without a strategy too. The strategy uses `install`,
`around_replicas`, `replica_count_was_read` and `cut`. A program that gives a pipeline to `fit`
without any strategy calls `install` itself.
"""

from tfdp.keras_adapter import cut
from tfdp.keras_adapter.hooks import HOOKS, install
from tfdp.keras_adapter.replicas import around_replicas
from tfdp.keras_adapter.step import replica_count_was_read

__all__ = [
    "HOOKS",
    "around_replicas",
    "cut",
    "install",
    "replica_count_was_read",
]
