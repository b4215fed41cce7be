"""Makes Keras' trainer, losses, optimizers, metrics and layers right under many replicas.

Each hook wraps one function of Keras or TensorFlow, and changes nothing but under a strategy of
tfdp; those of `feeding`, for pipelines, work without a strategy too. The strategy uses `install`,
`around_replicas`, `replica_count_was_read` and `cut`. A program that gives a pipeline to `fit`
without any strategy calls `install` itself.
"""

import importlib
from typing import Any

from tfdp import hooks
from tfdp.keras_adapter import cut
from tfdp.keras_adapter.replicas import around_replicas
from tfdp.keras_adapter.step import StrategyState, replica_count_was_read

__all__ = [
    "StrategyState",
    "around_replicas",
    "cut",
    "install",
    "register",
    "replica_count_was_read",
]

# The modules that register hooks.
_MODULES = (
    "across_processes",
    "backups",
    "compiling",
    "feeding",
    "files",
    "gradients",
    "h5_files",
    "images",
    "layers",
    "losses",
    "metrics",
    "moments",
    "optimizers",
    "randomness",
    "recurrent",
    "saving",
    "scopes",
    "stand_ins",
    "statistics",
    "trainer",
    "variables",
    "whole_values",
)


def install(user: Any = None) -> None:
    """Puts the hooks of all modules in place, as `tfdp.hooks.install`."""
    register()
    hooks.install(user)


def register() -> None:
    """Imports all modules that register hooks."""
    for module in _MODULES:
        importlib.import_module(f"tfdp.keras_adapter.{module}")
