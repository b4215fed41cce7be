"""Rounds: updates that each replica makes by itself, until their weights are made one again.

Under a strategy with a `synchronization` no gradient is summed. A replica takes n times its own
term of the global batch's gradient instead, n the number of replicas: the mean of these is the
global gradient, for masks, weights and uneven shares, too. Losses, metrics and what layers write
stay those of the global batch.

What a round needs belongs to an optimizer, and is made with its slots: see `building`. The
variables may be synchronized in fragments, each at its own updates; then a count that is not zero
says that some fragment is apart. Where a synchronization overlaps with the next step, that one sums
the weights that it begins with: nothing is under way between steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients import round_ends
from tfdp.keras_adapter.gradients.nested_optimizers import innermost, optimizers_of
from tfdp.keras_adapter.gradients.round_ends import ROUND
from tfdp.keras_adapter.step import Phase, Step, current
from tfdp.keras_adapter.training import step_recording
from tfdp.replicas import Value
from tfdp.synchronization import Synchronization

# The attribute of an optimizer with the function that ends its round. Keras would track one that is
# set in the usual way.
_END = "tfdp_end_of_round"


def own(step: Step, gradient: Value | None) -> Value | None:
    """Returns what a replica updates with in place of a sum: n times its own term of it."""
    if gradient is None or step.num_replicas == 1:
        return gradient
    return map_values(lambda tensor: tensor * tf.cast(step.num_replicas, tensor.dtype), gradient)


class Update:
    """An update of one optimizer by each replica, which may begin a round, and end one.

    It is made once the gradients are there in the program; in the graph the sums that overlap with
    them do not wait for them.

    Args:
      step: The replica's step.
      optimizer: The outermost optimizer; it is built if it is not.
      variables: The variables that it updates.
    """

    def __init__(self, step: Step, optimizer: BaseOptimizer, variables: Sequence[Any]) -> None:
        self._step = step
        if not optimizer.built:
            with keras.name_scope(optimizer.name):
                optimizer.build(list(variables))
            optimizer.built = True
        self._before = [
            (one, tf.identity(tf.convert_to_tensor(one.iterations)))
            for one in innermost(optimizer)
            if ROUND in vars(one)
        ]
        for one, _ in self._before:
            _begin(step, one)
            round_ends.sum_ahead(step, one)

    def end(self) -> None:
        """Counts the updates that were made, and synchronizes or mixes what is due after them."""
        synchronization = self._step.replicas.exchange.synchronization
        assert synchronization is not None
        mixings = synchronization.mixings(self._step.num_replicas)
        for one, before in self._before:
            updates = tf.convert_to_tensor(one.iterations)
            made = tf.cast(updates - before, tf.int64)
            step_recording.updates(made)
            apart = vars(one)[ROUND]["apart"]
            held = apart.read_value()
            count = held + made
            with self._step.replicas.identical_writes():
                apart.assign(count)
            if mixings is not None:
                total = tf.cast(updates, tf.int64)
                due = (made > 0) & tf.equal(total % synchronization.every, 0)
                turn = (total // synchronization.every - 1) % len(mixings)
                round_ends.when(
                    due, functools.partial(round_ends.mix, self._step, one, mixings, turn)
                )
                continue
            round_ends.take_in(self._step, one)
            warm = tf.cast(updates, tf.int64) <= synchronization.warmup_steps
            for number, last in enumerate(_lasts(synchronization)):
                rounds = [(each - last) // synchronization.every for each in (held, count)]
                due = (rounds[1] > rounds[0]) | ((made > 0) & warm)
                end = functools.partial(round_ends.synchronize, self._step, one, number)
                if synchronization.overlap is not None:
                    end = functools.partial(round_ends.put_off, self._step, one, number)
                round_ends.when(due, end)


def _lasts(synchronization: Synchronization) -> list[int]:
    """Returns for each fragment its last update of a round, of which the first is number 1."""
    parts = synchronization.fragments
    return [synchronization.every * (number + 1) // parts for number in range(parts)]


def end_rounds(strategy: Any, owner: Any) -> None:
    """Synchronizes replicas where a round is open; all processes must call it.

    Args:
      strategy: The strategy.
      owner: A model, whose optimizers are meant, or an optimizer.
    """
    for one in optimizers_of(owner):
        found = vars(one).get(ROUND)
        if found is None or not int(found["apart"].numpy()):
            continue
        if _END not in vars(one):
            vars(one)[_END] = _function(strategy, one)
        vars(one)[_END]()


def end_averages(owner: Any) -> None:
    """Makes moving averages that were written into weights one, where each replica has its own.

    All processes must call it.

    Args:
      owner: A model, or an optimizer.
    """
    for one in optimizers_of(owner):
        found = vars(one).get(ROUND)
        if found is None or not one.use_ema:
            continue
        found["apart"].assign(1)  # so that means are read
        for variable in variables_of_optimizer(one):
            held = round_ends.tensorflows(variable)
            held.assign(held.read_value())
        found["apart"].assign(0)


def _function(strategy: Any, optimizer: BaseOptimizer) -> Any:
    def of_replica() -> None:
        step = current()
        assert step is not None
        _synchronize_all(step, optimizer)

    @tf.function(autograph=False)
    def end() -> None:
        strategy.run(of_replica)

    return end


def _begin(step: Step, optimizer: BaseOptimizer) -> None:
    """Keeps the weights at which a round begins, for an outer optimizer.

    They are read again for each round: the program may have set others since the last one.
    """
    found = vars(optimizer)[ROUND]
    if not found["began"]:
        return

    def keep() -> None:
        for copy, variable in zip(found["began"], variables_of_optimizer(optimizer), strict=True):
            with step.during(Phase.UPDATE):
                copy.assign(
                    tf.cast(tf.convert_to_tensor(round_ends.tensorflows(variable)), copy.dtype)
                )

    round_ends.when(tf.equal(found["apart"].read_value(), 0), keep)


def _synchronize_all(step: Step, optimizer: BaseOptimizer) -> None:
    """Ends the round of each fragment that was updated since its last synchronization."""
    synchronization = step.replicas.exchange.synchronization
    assert synchronization is not None
    apart = vars(optimizer)[ROUND]["apart"]
    count = apart.read_value()
    for number, last in enumerate(_lasts(synchronization)):
        # Before its first time in the round nothing of the fragment was synchronized.
        is_open = (count < last) | ((count - last) % synchronization.every > 0)
        # With an overlap the replicas never have the same values.
        always = synchronization.fragments == 1 or synchronization.overlap is not None
        round_ends.when(
            is_open | always, functools.partial(round_ends.synchronize, step, optimizer, number)
        )
    with step.replicas.identical_writes():
        apart.assign(0)
        if synchronization.overlap is not None:
            vars(optimizer)[ROUND]["due"].assign(0)
