"""The hooks that make Keras' trainer, losses, optimizers, metrics and layers right on replicas.

Each hook wraps one function of Keras or TensorFlow, and calls it as it is outside of a strategy of
tfdp; the hooks in `feeding`, for pipelines, act without a strategy too. The strategy uses
`install`, `around_replicas`, `end_rounds`, `end_averages`, `explain`, `compile_ahead`,
`of_each_replica` and `of_fixed_sizes`. A program that gives a pipeline to `fit` without any
strategy calls `install` itself.
"""

import importlib
from typing import Any

from tfdp import hooks
from tfdp.keras_adapter.fixed_sizes import of_fixed_sizes
from tfdp.keras_adapter.gradients.rounds import end_averages, end_rounds
from tfdp.keras_adapter.layers.own_moments import of_each_replica
from tfdp.keras_adapter.replica_functions import around_replicas
from tfdp.keras_adapter.step import StrategyState
from tfdp.keras_adapter.training.compiled_programs import compile_ahead
from tfdp.keras_adapter.training.one_program import explain

__all__ = [
    "StrategyState",
    "around_replicas",
    "compile_ahead",
    "end_averages",
    "end_rounds",
    "explain",
    "install",
    "of_each_replica",
    "of_fixed_sizes",
    "register",
]

# The modules that register hooks.
_MODULES = (
    "fixed_sizes",
    "gradients.optimizers",
    "gradients.quotients",
    "layers.batch_normalization",
    "layers.own_moments",
    "random.seeds",
    "saving.callback_files",
    "saving.h5_files",
    "saving.loading",
    "saving.model_files",
    "training.fit_evaluate_predict",
    "training.feeding",
    "training.late_logs",
    "training.trainer",
    "training.unscaled_losses",
    "variables.lazy",
    "variables.statistics",
)


def install(user: Any = None) -> None:
    """Registers the hooks of all modules and puts them in place, as `tfdp.hooks.install` does."""
    register()
    hooks.install(user)


def register() -> None:
    """Imports all modules that register hooks, without putting the hooks in place."""
    for module in _MODULES:
        importlib.import_module(f"tfdp.keras_adapter.{module}")
