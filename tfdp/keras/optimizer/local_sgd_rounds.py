"""Rounds: updates that each replica makes by itself, until their weights are made one again.

Under a strategy with a `synchronization` no gradient is summed. A replica takes n times its own
term of the global batch's gradient instead, n the number of replicas: the mean of these is the
global gradient, for masks, weights and uneven shares, too. Losses, metrics and what layers write
stay those of the global batch.

What a round needs belongs to an optimizer, and is made with its slots: see `local_sgd_state`. The
variables may be synchronized in fragments, each at its own updates; then a count that is not zero
says that some fragment is apart. Where a synchronization overlaps with the next step, that one sums
the weights that it begins with: nothing is under way between steps.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.collectives import map_values
from tfdp.communication.replicas import Value
from tfdp.compression.exchange import exchange_between
from tfdp.keras import step_recording
from tfdp.keras._keras import BaseOptimizer, variables_of_optimizer
from tfdp.keras.nested_optimizers import innermost, optimizers_of
from tfdp.keras.optimizer import local_sgd_sync
from tfdp.keras.optimizer.compression_slots import check_momentum_of, make_slots
from tfdp.keras.optimizer.local_sgd_state import round_of
from tfdp.keras.optimizer.local_sgd_sync import ROUND
from tfdp.keras.optimizer.per_replica_updates import PerReplicaUpdates, call, when
from tfdp.keras.replica_step import Phase, ReplicaStep, current
from tfdp.synchronization.weight_averaging import WeightAveraging

# The attribute of an optimizer with the function that ends its round. Keras would track one that is
# set in the usual way.
_END = "tfdp_end_of_round"


class LocalSGDRounds(PerReplicaUpdates):
    """Each replica updates by its own gradients, with state of its own, until a round ends."""

    def __init__(self, synchronization: WeightAveraging) -> None:
        self._synchronization = synchronization

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Makes per-replica slots, and what rounds and their compression need."""
        check_momentum_of(optimizer, variables)
        with round_of(optimizer, variables, self._synchronization):
            yield
        make_slots(optimizer)

    def making(
        self, optimizer: BaseOptimizer, initializer: Any, accumulates: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Makes all as it is built: per replica."""
        return contextlib.nullcontext()

    def made(self, optimizer: BaseOptimizer, variable: Any, slot: Any, accumulates: bool) -> None:
        """Says of an accumulated gradient that it is one."""
        slot.value.accumulates = accumulates

    @contextlib.contextmanager
    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> Iterator[list[Value | None]]:
        """Gives each replica n times its own term, begins a round before and ends one after."""
        optimizers = [one for one in innermost(optimizer) if ROUND in vars(one)]
        if tf.executing_eagerly():  # one device's update, which takes no part
            yield gradients
            return
        for one in optimizers:
            begin = functools.partial(_begin, one)
            call([], begin, _nothing, _kept_of(one), reads=variables_of_optimizer(one))
        before = [tf.identity(tf.convert_to_tensor(one.iterations)) for one in optimizers]
        yield call(gradients, _own_terms, gives_alike=False)
        for one, count in zip(optimizers, before, strict=True):
            updates = tf.cast(tf.convert_to_tensor(one.iterations), tf.int64)
            made = updates - tf.cast(count, tf.int64)
            end, uses = functools.partial(_end, one), [*_kept_of(one), *variables_of_optimizer(one)]
            call([made, updates], end, _nothing, uses)

    def end(self, strategy: Any, optimizer: BaseOptimizer) -> None:
        """Synchronizes replicas, if a round is open."""
        found = vars(optimizer).get(ROUND)
        if found is None or not int(found["apart"].numpy()):
            return
        if _END not in vars(optimizer):
            vars(optimizer)[_END] = _function(strategy, optimizer)
        vars(optimizer)[_END]()


def _nothing(values: list[Value]) -> list[Value]:
    return []


def _kept_of(optimizer: BaseOptimizer) -> list[Any]:
    """Returns what a round keeps, without what only it uses."""
    found = vars(optimizer)[ROUND]
    return [found["apart"], *found["began"], *([found["due"]] if "due" in found else [])]


def _own_terms(step: ReplicaStep, values: list[Value], are_own: list[bool]) -> list[Value]:
    """Returns what a replica updates with in place of sums: n times its own terms of them."""

    def times(tensor: tf.Tensor) -> tf.Tensor:
        return tensor * tf.cast(step.num_replicas, tensor.dtype)

    pairs = zip(values, are_own, strict=True)
    return [map_values(times, value) if is_own else value for value, is_own in pairs]


def _end(
    optimizer: BaseOptimizer, step: ReplicaStep, values: list[Value], are_own: list[bool]
) -> list[Value]:
    """Counts the updates that were made, and synchronizes or mixes what is due after them."""
    made, updates = values
    synchronization = exchange_between(step.replicas).synchronization
    assert isinstance(synchronization, WeightAveraging)
    mixings = synchronization.mixings(step.num_replicas)
    step_recording.updates(made)
    apart = vars(optimizer)[ROUND]["apart"]
    held = apart.read_value()
    count = held + made
    with step.replicas.identical_writes():
        apart.assign(count)
    if mixings is not None:
        due = (made > 0) & tf.equal(updates % synchronization.every, 0)
        turn = (updates // synchronization.every - 1) % len(mixings)
        when(due, functools.partial(local_sgd_sync.mix, step, optimizer, mixings, turn))
        return []
    local_sgd_sync.take_in(step, optimizer)
    warm = updates <= synchronization.warmup_steps
    for number, last in enumerate(_lasts(synchronization)):
        rounds = [(each - last) // synchronization.every for each in (held, count)]
        due = (rounds[1] > rounds[0]) | ((made > 0) & warm)
        end = functools.partial(local_sgd_sync.synchronize, step, optimizer, number)
        if synchronization.overlap is not None:
            end = functools.partial(local_sgd_sync.put_off, step, optimizer, number)
        when(due, end)
    return []


def _lasts(synchronization: WeightAveraging) -> list[int]:
    """Returns for each fragment its last update of a round, of which the first is number 1."""
    parts = synchronization.fragments
    return [synchronization.every * (number + 1) // parts for number in range(parts)]


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
            held = tensorflows(variable)
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

    # Also where `tf.config.run_functions_eagerly` is on: replicas compress in graphs alone.
    return end.get_concrete_function()


def _begin(
    optimizer: BaseOptimizer, step: ReplicaStep, values: list[Value], are_own: list[bool]
) -> list[Value]:
    """Keeps the weights at which a round begins, for an outer optimizer, and sums what is due.

    They are read again for each round: the program may have set others since the last one.
    """
    found = vars(optimizer)[ROUND]
    if not found["began"]:
        return []

    def keep() -> None:
        for copy, variable in zip(found["began"], variables_of_optimizer(optimizer), strict=True):
            with step.during(Phase.UPDATE):
                copy.assign(tf.cast(tf.convert_to_tensor(tensorflows(variable)), copy.dtype))

    when(tf.equal(found["apart"].read_value(), 0), keep)
    local_sgd_sync.sum_ahead(step, optimizer)
    return []


def _synchronize_all(step: ReplicaStep, optimizer: BaseOptimizer) -> None:
    """Ends the round of each fragment that was updated since its last synchronization."""
    synchronization = exchange_between(step.replicas).synchronization
    assert isinstance(synchronization, WeightAveraging)
    apart = vars(optimizer)[ROUND]["apart"]
    count = apart.read_value()
    for number, last in enumerate(_lasts(synchronization)):
        # Before its first time in the round nothing of the fragment was synchronized.
        is_open = (count < last) | ((count - last) % synchronization.every > 0)
        # With an overlap the replicas never have the same values.
        always = synchronization.fragments == 1 or synchronization.overlap is not None
        when(
            is_open | always, functools.partial(local_sgd_sync.synchronize, step, optimizer, number)
        )
    with step.replicas.identical_writes():
        apart.assign(0)
        if synchronization.overlap is not None:
            vars(optimizer)[ROUND]["due"].assign(0)
