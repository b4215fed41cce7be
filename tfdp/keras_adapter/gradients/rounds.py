"""Rounds: updates that each replica makes by itself, until their weights are made one again.

Under a strategy with a `synchronization` no gradient is summed. A replica takes n times its own
term of the global batch's gradient instead, n the number of replicas: the mean of these is the
global gradient, for masks, weights and uneven shares, too. Losses, metrics and what layers write
stay those of the global batch.

What a round needs belongs to an optimizer, and is made with its slots: see `building`. The
variables may be synchronized in fragments, each at its own updates; then a count that is not zero
says that some fragment is apart. Where a synchronization overlaps with the next step, that step sums
the weights that it begins with: nothing is under way between steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients import compressing
from tfdp.keras_adapter.gradients.nested_optimizers import innermost, optimizers_of
from tfdp.keras_adapter.step import Phase, Step, at_least_float32, current
from tfdp.keras_adapter.training import step_recording
from tfdp.replicas import Value
from tfdp.synchronization import Synchronization

# The attributes of an optimizer: what a round needs, where `tfdp.checkpoint` finds it, and the
# function that ends a round. Keras would track those that are set in the usual way.
ROUND = "tfdp_round"
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
            _sum_ahead(step, one)

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
                _if(due, functools.partial(_mix, self._step, one, mixings, turn))
                continue
            _take_in(self._step, one)
            warm = tf.cast(updates, tf.int64) <= synchronization.warmup_steps
            for number, last in enumerate(_lasts(synchronization)):
                rounds = [(each - last) // synchronization.every for each in (held, count)]
                due = (rounds[1] > rounds[0]) | ((made > 0) & warm)
                end = functools.partial(_synchronize, self._step, one, number)
                if synchronization.overlap is not None:
                    end = functools.partial(_put_off, self._step, one, number)
                _if(due, end)


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
            held = _tensorflows(variable)
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
                copy.assign(tf.cast(tf.convert_to_tensor(_tensorflows(variable)), copy.dtype))

    _if(tf.equal(found["apart"].read_value(), 0), keep)


def _synchronize_all(step: Step, optimizer: BaseOptimizer) -> None:
    """Ends the round of each fragment that was updated since its last synchronization."""
    synchronization = step.replicas.exchange.synchronization
    assert synchronization is not None
    apart = vars(optimizer)[ROUND]["apart"]
    count = apart.read_value()
    for number, last in enumerate(_lasts(synchronization)):
        # Before its first time in the round nothing of the fragment was synchronized.
        is_open = (count < last) | ((count - last) % synchronization.every > 0)
        always = synchronization.fragments == 1 or synchronization.overlap is not None
        _if(is_open | always, functools.partial(_synchronize, step, optimizer, number))
    with step.replicas.identical_writes():
        apart.assign(0)
        if synchronization.overlap is not None:
            vars(optimizer)[ROUND]["due"].assign(0)


def _synchronize(step: Step, optimizer: BaseOptimizer, number: int) -> None:
    """Ends the round of a fragment: its variables become their mean, or what that is updated to."""
    found = vars(optimizer)[ROUND]
    variables, began = _fragment(optimizer, number)
    ends = _moved(step, optimizer, number) if began else _mean(step, _values(variables))
    with step.during(Phase.UPDATE), step.replicas.identical_writes():
        _assign(variables, ends)
        if len(found["fragments"]) == 1:
            found["apart"].assign(0)


def _put_off(step: Step, optimizer: BaseOptimizer, number: int) -> None:
    """Leaves the end of a fragment's round to the next step."""
    with step.replicas.identical_writes():
        vars(optimizer)[ROUND]["due"].assign(number + 1)


def _sum_ahead(step: Step, optimizer: BaseOptimizer) -> None:
    """Updates where the round of the fragment began that is due, while gradients are computed."""
    _if_due(optimizer, functools.partial(_moved, step, optimizer))


def _take_in(step: Step, optimizer: BaseOptimizer) -> None:
    """Mixes a replica's own weights with what `_sum_ahead` has updated."""
    synchronization = step.replicas.exchange.synchronization
    assert synchronization is not None
    own_weight = synchronization.overlap

    def take_in(number: int) -> None:
        variables, began = _fragment(optimizer, number)
        starts = [tf.convert_to_tensor(copy.value) for copy in began]
        pairs = zip(_values(variables), starts, strict=True)
        with step.during(Phase.UPDATE):
            _assign(variables, [start + own_weight * (own - start) for own, start in pairs])
        with step.replicas.identical_writes():
            vars(optimizer)[ROUND]["due"].assign(0)

    _if_due(optimizer, take_in)


def _if_due(optimizer: BaseOptimizer, act: Callable[[int], Any]) -> None:
    """Calls `act` with the number of the fragment whose end was put off, if there is one."""
    found = vars(optimizer)[ROUND]
    if "due" in found:
        due = found["due"].read_value()
        for number in range(len(found["fragments"])):
            _if(tf.equal(due, number + 1), functools.partial(act, number))


def _fragment(optimizer: BaseOptimizer, number: int) -> tuple[list[Any], list[keras.Variable]]:
    """Returns the variables of a fragment, and for an outer optimizer where its round began."""
    found = vars(optimizer)[ROUND]
    members, known = found["fragments"][number], list(variables_of_optimizer(optimizer))
    began = [found["began"][index] for index in members if found["began"]]
    return [known[index] for index in members], began


def _values(variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the replica's own values, in float32 at least."""
    values = [tf.convert_to_tensor(_tensorflows(variable)) for variable in variables]
    return [tf.cast(value, at_least_float32(value.dtype)) for value in values]


def _assign(variables: Sequence[Any], values: Sequence[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        held = _tensorflows(variable)
        held.assign(tf.cast(value, held.dtype))


def _mean(step: Step, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    with step_recording.watching_buckets(of_update=False) as watch:
        sums = step.sum_prepared(values, None, watch)
    return [total / tf.cast(step.num_replicas, total.dtype) for total in sums]


def _moved(step: Step, optimizer: BaseOptimizer, number: int) -> list[tf.Tensor]:
    """Returns where an outer optimizer goes on from: see `Synchronization`."""
    variables, began = _fragment(optimizer, number)
    values = _values(variables)
    starts = [tf.convert_to_tensor(copy.value) for copy in began]
    pairs = list(zip(starts, values, strict=True))
    if step.replicas.exchange.compression is None:
        gradients = [start - mean for start, mean in zip(starts, _mean(step, values), strict=True)]
    else:
        # A compression sums, so that each replica gives its part of the mean.
        own = [(start - value) / tf.cast(step.num_replicas, value.dtype) for start, value in pairs]
        with step_recording.watching_buckets(of_update=False) as watch:
            if step.replicas.exchange.update_compression is None:
                gradients = step.sum_prepared(own, None, watch, compress=True)
            else:
                gradients = compressing.summed(step, optimizer, own, variables, watch)
    with step.during(Phase.UPDATE), step.replicas.identical_writes():
        vars(optimizer)[ROUND]["outer"][number].apply(gradients, began)
    return [tf.convert_to_tensor(copy.value) for copy in began]


def _mix(
    step: Step,
    optimizer: BaseOptimizer,
    mixings: Sequence[tuple[int, ...]],
    turn: tf.Tensor,
) -> None:
    """Takes the mean of the caller's variables and its neighbours': see `Gossip`."""
    variables = list(variables_of_optimizer(optimizer))
    values = _values(variables)

    def mixed(distances: tuple[int, ...]) -> list[tf.Tensor]:
        with step_recording.watching_buckets(of_update=False) as watch:
            sums = step.replicas.sum_of_neighbours(values, distances, watch)
        return [total / tf.cast(1 + len(distances), total.dtype) for total in sums]

    if len(mixings) == 1:
        ends = mixed(mixings[0])
    else:
        ways = {number: functools.partial(mixed, each) for number, each in enumerate(mixings)}
        ends = tf.switch_case(tf.cast(turn, tf.int32), ways)
    with step.during(Phase.UPDATE):
        _assign(variables, ends)


def _if(condition: tf.Tensor, act: Callable[[], None]) -> None:
    def acted() -> tf.Tensor:
        act()
        return tf.constant(True)

    tf.cond(condition, acted, lambda: tf.constant(False))


def _tensorflows(variable: Any) -> Any:
    """Returns TensorFlow's variable behind one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable
