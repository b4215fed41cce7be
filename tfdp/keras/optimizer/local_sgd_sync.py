"""The end of a round: one mean of the replicas' weights, or a mix with others'.

What a round needs is in its optimizer: see `local_sgd_state`. These functions are called in
branches that all replicas take alike.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base import recording
from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.collectives import payloads
from tfdp.compression.exchange import exchange_between
from tfdp.keras._keras import BaseOptimizer, variables_of_optimizer
from tfdp.keras.optimizer import compressed_updates
from tfdp.keras.optimizer.per_replica_updates import when
from tfdp.keras.replica_step import Phase, ReplicaStep
from tfdp.synchronization.weight_averaging import WeightAveraging

# The attribute of an optimizer that has what a round needs, where `tfdp.callbacks.checkpoint` finds
# it.
ROUND = "tfdp_round"


def synchronize(step: ReplicaStep, optimizer: BaseOptimizer, number: int) -> None:
    """Ends the round of a fragment: its variables become their mean, or what that is updated to."""
    found = vars(optimizer)[ROUND]
    variables, began = _fragment(optimizer, number)
    if began:
        ends = _updated_by_outer(step, optimizer, number, waits=True)
    else:
        ends = _mean(step, _values(variables), waits=True)
    with step.during(Phase.UPDATE), step.replicas.identical_writes():
        _assign(variables, ends)
        if len(found["fragments"]) == 1:
            found["apart"].assign(0)


def put_off(step: ReplicaStep, optimizer: BaseOptimizer, number: int) -> None:
    """Leaves the end of a fragment's round to the next step."""
    with step.replicas.identical_writes():
        vars(optimizer)[ROUND]["due"].assign(number + 1)


def sum_ahead(step: ReplicaStep, optimizer: BaseOptimizer) -> None:
    """Lets the outer optimizer update where the round of the fragment that is due began.

    It needs no gradient of this step. A step that fails after it leaves it done.
    """

    def updated(number: int) -> None:
        _updated_by_outer(step, optimizer, number, waits=False)
        with step.replicas.identical_writes():
            vars(optimizer)[ROUND]["due"].assign(-(number + 1))

    _if_due(optimizer, updated, summed=False)


def take_in(step: ReplicaStep, optimizer: BaseOptimizer) -> None:
    """Mixes a replica's own weights with what `sum_ahead` has updated."""
    synchronization = exchange_between(step.replicas).synchronization
    assert isinstance(synchronization, WeightAveraging)
    own_weight = synchronization.overlap

    def mixed(number: int) -> None:
        variables, began = _fragment(optimizer, number)
        starts = [tf.convert_to_tensor(copy.value) for copy in began]
        pairs = zip(_values(variables), starts, strict=True)
        with step.during(Phase.UPDATE):
            _assign(variables, [start + own_weight * (own - start) for own, start in pairs])
        with step.replicas.identical_writes():
            vars(optimizer)[ROUND]["due"].assign(0)

    _if_due(optimizer, mixed, summed=True)


def _if_due(optimizer: BaseOptimizer, act: Callable[[int], Any], summed: bool) -> None:
    """Calls `act` with the number of the fragment whose end was put off, if there is one.

    Args:
      optimizer: The optimizer.
      act: What is done.
      summed: Whether a fragment is meant that `sum_ahead` has summed, or one that it has not.
    """
    found = vars(optimizer)[ROUND]
    if "due" in found:
        due = found["due"].read_value()
        for number in range(len(found["fragments"])):
            mark = -(number + 1) if summed else number + 1
            when(tf.equal(due, mark), functools.partial(act, number))


def _fragment(optimizer: BaseOptimizer, number: int) -> tuple[list[Any], list[keras.Variable]]:
    """Returns the variables of a fragment, and for an outer optimizer where its round began."""
    found = vars(optimizer)[ROUND]
    members, known = found["fragments"][number], list(variables_of_optimizer(optimizer))
    began = [found["began"][index] for index in members if found["began"]]
    return [known[index] for index in members], began


def _values(variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the replica's own values, in float32 at least."""
    values = [tf.convert_to_tensor(tensorflows(variable)) for variable in variables]
    return [tf.cast(value, payloads.precise(value.dtype)) for value in values]


def _assign(variables: Sequence[Any], values: Sequence[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        held = tensorflows(variable)
        held.assign(tf.cast(value, held.dtype))


def _mean(step: ReplicaStep, values: Sequence[tf.Tensor], waits: bool) -> list[tf.Tensor]:
    with recording.watching_buckets(of_update=False, timed=waits):
        sums = step.replicas.sum_without_gradient(values)
    return [total / tf.cast(step.num_replicas, total.dtype) for total in sums]


def _updated_by_outer(
    step: ReplicaStep, optimizer: BaseOptimizer, number: int, waits: bool
) -> list[tf.Tensor]:
    """Sums a fragment's outer gradients and applies its outer optimizer; returns the new weights.

    Args:
      step: The replica's step.
      optimizer: The inner optimizer.
      number: The fragment's number.
      waits: Whether the step waits for the sum.
    """
    variables, began = _fragment(optimizer, number)
    values = _values(variables)
    starts = [tf.convert_to_tensor(copy.value) for copy in began]
    pairs = list(zip(starts, values, strict=True))
    if exchange_between(step.replicas).compression is None:
        means = _mean(step, values, waits)
        gradients = [start - mean for start, mean in zip(starts, means, strict=True)]
    else:
        # A compression sums, so that each replica gives its part of the mean.
        own = [(start - value) / tf.cast(step.num_replicas, value.dtype) for start, value in pairs]
        with recording.watching_buckets(of_update=False, timed=waits):
            if exchange_between(step.replicas).update_compression is None:
                gradients = step.replicas.sum_without_gradient(own, compress=True)
            else:
                update = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int32)
                gradients = compressed_updates.summed(step, optimizer, own, variables, update)
    with step.during(Phase.UPDATE), step.replicas.identical_writes():
        vars(optimizer)[ROUND]["outer"][number].apply(gradients, began)
    return [tf.convert_to_tensor(copy.value) for copy in began]


def mix(
    step: ReplicaStep,
    optimizer: BaseOptimizer,
    mixings: Sequence[tuple[int, ...]],
    turn: tf.Tensor,
) -> None:
    """Takes the mean of the caller's variables and its neighbours': see `Gossip`."""
    variables = list(variables_of_optimizer(optimizer))
    values = _values(variables)

    def mixed(distances: tuple[int, ...]) -> list[tf.Tensor]:
        with recording.watching_buckets(of_update=False):
            sums = step.replicas.sum_of_neighbours(values, distances)
        return [total / tf.cast(1 + len(distances), total.dtype) for total in sums]

    if len(mixings) == 1:
        ends = mixed(mixings[0])
    else:
        ways = {number: functools.partial(mixed, each) for number, each in enumerate(mixings)}
        ends = tf.switch_case(tf.cast(turn, tf.int32), ways)
    with step.during(Phase.UPDATE):
        _assign(variables, ends)
