"""The hooks that make Keras' trainer, losses, optimizers, metrics and layers right on replicas.

Each hook wraps one function of Keras or TensorFlow, and calls it as it is outside of a strategy of
tfdp; the hooks in `epoch_iterators`, for pipelines, act without a strategy too. The strategy uses
`install`, `end_rounds`, `end_averages`, `explain` and `compile_ahead`, and `run.replica_functions`.
A program that gives a pipeline to `fit` without any strategy calls `install` itself.
"""

import importlib
from typing import Any

from tfdp.base import hooks
from tfdp.keras.optimizer.local_sgd_rounds import end_averages
from tfdp.keras.optimizer.optimizer_hooks import end_rounds
from tfdp.keras.replica_step import StrategyState
from tfdp.keras.trainer.compiled_steps import compile_ahead
from tfdp.keras.trainer.partitioned_steps import explain

__all__ = [
    "StrategyState",
    "compile_ahead",
    "end_averages",
    "end_rounds",
    "explain",
    "install",
    "register",
]

# The modules that register hooks.
_MODULES = (
    "batch_normalization",
    "optimizer.optimizer_hooks",
    "run.seeds",
    "run.statistics",
    "saving.callback_files",
    "saving.loading",
    "saving.model_files",
    "static_sizes",
    "trainer.epoch_iterators",
    "trainer.fit_evaluate_predict",
    "trainer.late_logs",
    "trainer.trainer_hooks",
)


def install(user: Any = None) -> None:
    """Registers the hooks of all modules and puts them in place, as `hooks.install` does."""
    register()
    hooks.install(user)


def register() -> None:
    """Imports all modules that register hooks, without putting the hooks in place."""
    for module in _MODULES:
        importlib.import_module(f"tfdp.keras.{module}")
