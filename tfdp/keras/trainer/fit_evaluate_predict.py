"""The hooks of `fit`, `evaluate` and `predict`: all ranks start alike, rank 0 shows progress."""

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication import collectives
from tfdp.communication.replicas import is_of_tfdp, processes_of, replicas_of
from tfdp.keras import rate_check
from tfdp.keras._keras import TensorFlowTrainer
from tfdp.keras.trainer import epoch_rounds, feeding, forgotten_scopes, rank_agreement
from tfdp.keras.trainer.replica_check import CopiesCompared
from tfdp.keras.trainer.step_agreement import EpochsCompared


@hook(TensorFlowTrainer, "fit")
def fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Trains after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("fit", original, self, args, kwargs)


@hook(TensorFlowTrainer, "evaluate")
def evaluate(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluates after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("evaluate", original, self, args, kwargs)


@hook(TensorFlowTrainer, "predict")
def predict(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Predicts after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("predict", original, self, args, kwargs)


def _run(name: str, original: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    if name == "fit" and is_of_tfdp(model.distribute_strategy):
        if replicas_of(model.distribute_strategy) is not None:
            rate_check.prepare(model, bound.arguments)
        _watch_epochs(model, bound.arguments)
    checkpoint = feeding.arrange(name, bound.arguments)
    with feeding.explained(bound.arguments), feeding.during(name, model, checkpoint):
        return _run_arranged(name, original, model, bound)


def _watch_epochs(model: Any, arguments: dict[str, Any]) -> None:
    """Puts what happens at the end of each epoch of a `fit` before its callbacks, or after them."""
    given = arguments.get("callbacks")
    flat = feeding.callbacks_in(arguments)
    first: list[Any] = []
    if replicas_of(model.distribute_strategy) is not None:
        first = [*epoch_rounds.callbacks_for(model, flat), CopiesCompared()]
    own = [*first, EpochsCompared()]
    kinds = tuple(type(callback) for callback in own)  # of an earlier `fit` with this list
    ordered = [*first, *(each for each in flat if not isinstance(each, kinds)), own[-1]]
    if isinstance(given, keras.callbacks.CallbackList):
        for callback in own:
            callback.set_params(given.params)
            callback.set_model(model)
        given.callbacks[:] = ordered
    else:
        arguments["callbacks"] = ordered


def _run_arranged(
    name: str, original: Callable[..., Any], model: Any, bound: inspect.BoundArguments
) -> Any:
    replicas = replicas_of(model.distribute_strategy)
    within_fit = bound.arguments.get("kwargs", {}).get("_use_cached_eval_dataset")
    if within_fit and replicas is not None:
        epoch_rounds.end_epoch(model)  # which is validated before its callbacks are called
    if not is_of_tfdp(model.distribute_strategy):
        if name == "fit":
            forgotten_scopes.warn(model)
        return original(*bound.args, **bound.kwargs)
    processes = processes_of(model.distribute_strategy)
    if processes.world_size == 1:  # there is no other rank to compare with
        return original(*bound.args, **bound.kwargs)
    # Within `fit`, validation calls `evaluate` with data that `fit` has compared already.
    if not within_fit:
        here = {
            "`tf.config.run_functions_eagerly`": tf.config.functions_run_eagerly(),
            "whether TensorFloat-32 is enabled": (
                tf.config.experimental.tensor_float_32_execution_enabled()
            ),
            "the seed of `keras.utils.set_random_seed`": collectives.global_seed(),
            "whether an error was caught since the last call": processes.error is not None,
        }
        alike = rank_agreement.of_arguments(bound.arguments) | rank_agreement.of_model(model)
        if replicas is not None:  # a compiler's devices begin with rank 0's values
            alike |= rank_agreement.of_variables(model)
        processes.compare(f"`{name}`", here | alike)
        processes.adopt_random_states()
    if name == "fit":
        trained = weakref.ref(model)
        processes.settings[collectives.STOP_TRAINING] = lambda: getattr(
            trained(), "stop_training", False
        )
    if processes.rank != 0:
        bound.arguments["verbose"] = 0
    with processes.explained():
        return original(*bound.args, **bound.kwargs)
