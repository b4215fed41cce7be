"""The checks of a model that goes on from a checkpoint, or is to be kept in one."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdp.callbacks.checkpoint import callback_states, model_variables
from tfdp.callbacks.checkpoint.remote_path import AnyPath
from tfdp.communication.replicas import is_of_tfdp, processes_of


def check_model(model: Any) -> None:
    """Checks that all that a model holds can be kept.

    Raises:
      ValueError: It was made outside of a strategy, or it or an optimizer in it is not built.
    """
    strategy = model.distribute_strategy
    if not is_of_tfdp(strategy):
        raise ValueError(
            "Checkpoint needs a model of a strategy of tfdp, but "
            f"{model.name!r} was made outside of one. Make and compile the model within "
            "`with tfdp.DataParallelStrategy().scope():`; it may have one replica."
        )
    if not model.built or not getattr(model.optimizer, "built", True):
        raise ValueError(
            f"{processes_of(strategy).said_by}Checkpoint needs a model that is built when training "
            f"begins, but {model.name!r} is built by its first step. Build it before: give it a "
            "`keras.Input`, or call it and `optimizer.build(model.trainable_variables)`."
        )
    for part in model_variables.parts(model):
        if isinstance(part, keras.optimizers.Optimizer) and not part.built:
            raise ValueError(
                f"{processes_of(strategy).said_by}Checkpoint needs optimizers that are built when "
                f"training begins, but {type(part).__name__} {part.name!r} in {model.name!r} is "
                "built by its first step. Call its `build` with the variables that it updates, "
                "before `fit` and within `strategy.scope()`."
            )


def check_same_training(
    model: Any,
    callbacks: Sequence[Any],
    path: AnyPath,
    manifest: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Checks that a checkpoint is of a model, an optimizer and callbacks like these.

    Raises:
      ValueError: It is of others; names the first difference.
    """
    different = None
    pairs = {
        "the optimizer": (manifest["optimizer"], type(model.optimizer).__name__),
        "the callbacks that have a state": (
            manifest["callbacks"],
            callback_states.kinds(callbacks),
        ),
    }
    for what, (there, here) in pairs.items():
        if there != here:
            different = f"{what} there: {there}; here: {here}"
    own = {name: array for name, array in arrays.items() if not name.startswith("callback-")}
    different = different or model_variables.difference(model, own)
    if different is not None:
        raise ValueError(
            f"{processes_of(model.distribute_strategy).said_by}A checkpoint must be of the same "
            f"training, but {str(path)!r} is of another: {different}. Give Checkpoint another "
            f"folder, or delete {str(path.parent)!r} to begin anew."
        )
