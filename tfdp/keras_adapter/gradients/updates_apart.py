"""Updates that replicas make by code of their own, in the place of the one-device program's.

Under a strategy with a `compression` or a `synchronization` an optimizer's update is no
part of the program that is derived of one device's: what reaches `apply` is given to each replica,
which sums it as the strategy says, or does not, and updates its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp import recording
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.keras_adapter.step import Step, current
from tfdp.partition.own_calls import own_call
from tfdp.replicas import Value, cutter_of, traced_exchange_of

# What a replica runs: given its step, the values that come in the place of gradients, and of each
# whether it is the replica's own term of the sum.
Update = Callable[[Step, list[Value | None], list[bool]], Any]


def are_made_here(optimizer: BaseOptimizer) -> bool:
    """Returns whether a one-device program is traced whose updates replicas make apart."""
    exchange = traced_exchange_of(strategy_of_optimizer(optimizer))
    return exchange is not None and exchange.updates_apart


def make(
    optimizer: BaseOptimizer,
    grads: Sequence[Value | None],
    variables: Sequence[Any],
    update: Update,
) -> None:
    """Puts the call of an update into the program that is being traced.

    Args:
      optimizer: The outermost optimizer; it is built if it is not.
      grads: What reaches it.
      variables: The variables that it updates.
      update: What a replica runs.
    """
    build(optimizer, variables)
    tap = recording.current()
    places = [index for index, grad in enumerate(grads) if grad is not None]

    def of_replica(values: Sequence[Value], are_summands: Sequence[bool]) -> None:
        step = current()
        assert step is not None
        found: list[Value | None] = [None] * len(grads)
        local = [False] * len(grads)
        for place, value, is_summand in zip(places, values, are_summands, strict=True):
            found[place], local[place] = value, is_summand
        with recording.tapped(None if tap is None else tap.of_replica(step.trace.index)):
            update(step, found, local)

    if tf.executing_eagerly():
        strategy = strategy_of_optimizer(optimizer)
        values = [grads[place] for place in places]
        with cutter_of(strategy).in_scope_while_traced():
            strategy.run(lambda: of_replica(values, [False] * len(values)))
        return
    own_call([grads[place] for place in places], _used_by(optimizer, variables), of_replica)


def build(optimizer: BaseOptimizer, variables: Sequence[Any]) -> None:
    """Builds an optimizer in its strategy's scope, if it is not built, while a step is traced."""
    if optimizer.built:
        return
    with cutter_of(strategy_of_optimizer(optimizer)).in_scope_while_traced():
        with keras.name_scope(optimizer.name):
            optimizer.build(list(variables))
        optimizer.built = True


def _used_by(optimizer: BaseOptimizer, variables: Sequence[Any]) -> list[tf.Variable]:
    """Returns the variables of an update that have a whole copy on each replica."""
    chain = [optimizer, *(one for one in innermost(optimizer) if one is not optimizer)]
    known = [*variables, *(each for one in chain for each in one.variables)]
    known += [each for one in chain for each in variables_of_optimizer(one) or ()]
    held = {id(each): each.value if isinstance(each, keras.Variable) else each for each in known}
    return [each for each in held.values() if not hasattr(each, "cut")]
