"""The errors, and a warning, for objects made on the wrong side of the strategy's scope."""

import logging
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp.base import hooks
from tfdp.communication.replicas import Replicas, is_of_tfdp
from tfdp.errors import ScopeError
from tfdp.keras._keras import KerasVariable, strategy_of_model, strategy_of_optimizer
from tfdp.keras.nested_optimizers import wrapped


def check_compiled_in_scope(model: Any) -> None:
    """Raises ScopeError if `model` is compiled in a scope in which it was not built."""
    strategy = tf.distribute.get_strategy()
    if is_of_tfdp(strategy) and strategy_of_model(model) is not strategy:
        raise ScopeError(
            f"A model must be built in the scope that it is compiled in, but {model.name!r} was "
            "built outside it, and would train on one device. Move its construction into `with "
            "strategy.scope():`, or its `compile` out of it."
        )


def check_made_in_scope(model: Any, strategy: tf.distribute.Strategy, replicas: Replicas) -> None:
    """Checks that a model and all variables that it uses were made in the strategy's scope.

    Raises:
      ScopeError: The model or a variable was made outside the scope.
      ValueError: A variable takes its gradient as its value, on several replicas.
    """
    if strategy_of_model(model) is not strategy:
        raise ScopeError(
            "A model must be built in the scope of the strategy that it trains under, but "
            f"{model.name!r} was built outside it. Move its construction and `compile` into "
            "`with strategy.scope():`."
        )
    for variable in model.trainable_variables:
        if replicas.num_replicas > 1 and getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "On several replicas no variable may take its gradient as its value, but "
                f"{variable.path!r} does, as float8 scales do. Train in another dtype, such "
                'as keras.config.set_dtype_policy("mixed_bfloat16"), or on one device.'
            )
    optimizer = getattr(model, "optimizer", None)
    parts = {
        "The model": model.variables,
        "The optimizer": getattr(optimizer, "variables", []),
        "A metric": [v for metric in model.metrics for v in metric.variables],
    }
    for part, variables in parts.items():
        check_variables(part, variables, strategy)


def check_asked(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Raises ScopeError if a strategy is asked of a model that was made outside its scope."""
    if strategy_of_model(model) is not strategy:
        raise ScopeError(
            "A model must be made in the scope of the strategy that is asked, but "
            f"{model.name!r} was made outside it. Ask its own strategy, or move its "
            "construction and `compile` into `with strategy.scope():`."
        )


def check_optimizer(optimizer: Any, strategy: Any) -> None:
    """Raises ScopeError if an optimizer, or one that it wraps, was made outside the scope."""
    for one in (optimizer, *wrapped(optimizer)):
        if strategy_of_optimizer(one) is not strategy:
            raise ScopeError(
                "An optimizer must be made in the scope of the strategy that it trains under, but "
                f"{one.name!r} was made outside it. Move its construction, or the call of "
                "`compile` that names it, into `with strategy.scope():`."
            )


def check_optimizers_scope(optimizer: Any, variables: Iterable[Any]) -> None:
    """Raises ScopeError if an optimizer was made outside the scope of the variables it updates.

    In a program that is traced as on one device it may: what is made there has copies.
    """
    for variable in variables:
        made = variable.value if isinstance(variable, KerasVariable) else variable
        strategy = getattr(made, "distribute_strategy", None)
        if is_of_tfdp(strategy) and strategy_of_optimizer(optimizer) is not strategy:
            raise ScopeError(
                "An optimizer and the variables that it updates must be made in one scope, but "
                f"{optimizer.name!r}, or the model that is compiled with it, was made outside the "
                f"scope in which {variable.path if made is not variable else variable.name!r} was. "
                "Move its construction, with that of the whole model and `compile`, into `with "
                "strategy.scope():`."
            )


def check_variables(owner: str, variables: Iterable[Any], strategy: Any) -> None:
    """Raises ScopeError if `owner` has a variable that was made outside the scope."""
    for variable in variables:
        # An optimizer takes variables of TensorFlow as well as of Keras.
        of_keras = isinstance(variable, KerasVariable)
        made = variable.value if of_keras else variable
        if getattr(made, "distribute_strategy", None) is not strategy:
            name = variable.path if of_keras else variable.name
            raise ScopeError(
                f"{owner} must be made in the scope of the strategy, but its variable {name!r} was "
                "made outside it. Move its construction into `with strategy.scope():`, and the "
                "call that builds its layers: the first call of a model or layer makes the "
                "variables. `fit` needs no call before it."
            )


_SUBJECT = "a model that was built outside of the scope"
_ON_ONE_DEVICE = "_tfdp_trains_on_one_device"  # an attribute of models


def mean_one_device(model: Any) -> None:
    """Notes that a model trains outside of any scope on purpose."""
    vars(model)[_ON_ONE_DEVICE] = True


def warn_of_forgotten(model: Any) -> None:
    """Says, once for a strategy, that a model which is to be trained was made outside its scope."""
    of_another = model.distribute_strategy is not tf.distribute.get_strategy()
    if of_another or _ON_ONE_DEVICE in vars(model):
        return  # it trains under a strategy of another kind
    # Ranks that train apart are replicas of no sum: each has one, and the run has several.
    trained_by = ((max(each.num_replicas_in_sync, each.world_size), each) for each in hooks.users())
    forgotten = [each for replicas, each in trained_by if replicas > 1]
    told = [each.adapter_state.warned_about for each in forgotten]
    if not forgotten or any(_SUBJECT in each for each in told):
        return
    for each in told:
        each.add(_SUBJECT)
    trains = (
        "each rank trains it alone, with all of the data"
        if forgotten[-1].world_size > 1
        else f"one device trains it, and not the {forgotten[-1].num_replicas_in_sync} replicas"
    )
    logging.getLogger("tfdp").warning(
        "%r was built outside the strategy's scope: %s. Build and compile it in `with "
        "strategy.scope():`.",
        model.name,
        trains,
    )
