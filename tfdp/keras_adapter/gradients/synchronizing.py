"""Rounds: updates that each replica makes by itself, until their weights are made one again.

Under a strategy with a `synchronization` no gradient is summed. A replica takes n times its own
term of the global batch's gradient instead, n the number of replicas: the mean of these is the
global gradient, for masks, weights and uneven shares, too. Losses, metrics and what layers write
stay those of the global batch.

What a round needs belongs to an optimizer: the number of updates since its variables were the same
on all replicas, and for an outer optimizer the values at which the round began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients.tape import innermost
from tfdp.keras_adapter.step import Phase, Step, at_least_float32, current
from tfdp.keras_adapter.tracing.origins import handles
from tfdp.keras_adapter.tracing.provenance import Mark, mark
from tfdp.keras_adapter.training import step_recording
from tfdp.keras_adapter.variables.apart import apart_of, check_round_ended
from tfdp.replicas import Value, replicas_of
from tfdp.synchronization import Synchronization

# The attributes of an optimizer: what a round needs, where `tfdp.checkpoint` finds it; the function
# that ends a round; and the note that it is an outer optimizer. Keras would track those that are
# set in the usual way.
_ROUND = "tfdp_round"
_END = "tfdp_end_of_round"
_IS_OUTER = "tfdp_is_outer"


@contextlib.contextmanager
def building(optimizer: BaseOptimizer) -> Iterator[None]:
    """Gives each replica slots of its own while `optimizer` is built, and then makes its round.

    Outside of replica functions a slot reads as the mean of the replicas'. It may be built by
    several methods, which call each other.
    """
    strategy = strategy_of_optimizer(optimizer)
    replicas = replicas_of(strategy)
    # One that chooses its optimizers by the variables has none before it is built.
    is_wrapper = innermost(optimizer) != [optimizer] or hasattr(optimizer, "optimizers")
    known = vars(optimizer)
    if (
        replicas is None
        or synchronization_of(strategy) is None
        or is_wrapper
        or is_outer(optimizer)
        or _ROUND in known
    ):
        yield
        return
    known[_ROUND] = {}
    try:
        with replicas.averaged_on_read():
            yield
        known[_ROUND] = _made(optimizer, synchronization_of(strategy))
    except BaseException:
        del known[_ROUND]
        raise


def _made(optimizer: BaseOptimizer, synchronization: Any) -> dict[str, Any]:
    variables = list(variables_of_optimizer(optimizer))
    with tf.init_scope():
        check_round_ended(variables, "build an optimizer")
        apart = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_in_round")
        began: list[keras.Variable] = []
        outer = synchronization.make_outer_optimizer()
        if outer is not None:
            vars(outer)[_IS_OUTER] = True
            began = [_copy(variable) for variable in variables]
            outer.build(began)
    for variable in variables:
        _tensorflows(variable).apart = (*apart_of(variable), apart)
        for handle in handles(variable):
            mark(handle, Mark.APART)
    return {"apart": apart, "began": began, "outer": outer}


def synchronization_of(strategy: Any) -> Synchronization | None:
    """Returns the strategy's synchronization; None if gradients are summed."""
    found: Synchronization | None = getattr(strategy, "synchronization", None)
    return found


def is_outer(optimizer: Any) -> bool:
    """Returns whether `optimizer` ends rounds, and so has the same state on all replicas."""
    return _IS_OUTER in vars(optimizer)


def own(step: Step, gradient: Value | None) -> Value | None:
    """Returns what a replica updates with in place of a sum: n times its own term of it."""
    if gradient is None or step.num_replicas == 1:
        return gradient
    return map_values(lambda tensor: tensor * tf.cast(step.num_replicas, tensor.dtype), gradient)


class Update:
    """An update of one optimizer by each replica, which may begin a round, and end one.

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
            if _ROUND in vars(one)
        ]
        for one, _ in self._before:
            _begin(step, one)

    def end(self) -> None:
        """Counts the updates that were made, and synchronizes replicas where a round is full."""
        synchronization = synchronization_of(self._step.strategy)
        assert synchronization is not None
        for one, before in self._before:
            updates = tf.convert_to_tensor(one.iterations)
            made = tf.cast(updates - before, tf.int64)
            apart = vars(one)[_ROUND]["apart"]
            count = apart.read_value() + made
            with self._step.replicas.identical_writes():
                apart.assign(count)
            full = count >= synchronization.every
            warm = tf.cast(updates, tf.int64) <= synchronization.warmup_steps
            _if((made > 0) & (full | warm), lambda one=one: _synchronize(self._step, one))


def end_rounds(strategy: Any, owner: Any) -> None:
    """Synchronizes replicas where a round is open; all processes must call it.

    Args:
      strategy: The strategy.
      owner: A model, whose optimizers are meant, or an optimizer.
    """
    for one in optimizers_of(owner):
        found = vars(one).get(_ROUND)
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
        found = vars(one).get(_ROUND)
        if found is None or not one.use_ema:
            continue
        found["apart"].assign(1)  # so that means are read
        for variable in variables_of_optimizer(one):
            held = _tensorflows(variable)
            held.assign(held.read_value())
        found["apart"].assign(0)


def optimizers_of(owner: Any) -> list[Any]:
    """Returns the innermost optimizers of a model, or of an optimizer."""
    if isinstance(owner, keras.optimizers.Optimizer):
        return innermost(owner)
    kept = [leaf for value in vars(owner).values() for leaf in _flat(value)]
    found = [one for o in kept if isinstance(o, keras.optimizers.Optimizer) for one in innermost(o)]
    return list({id(one): one for one in found}.values())


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _function(strategy: Any, optimizer: BaseOptimizer) -> Any:
    def of_replica() -> None:
        step = current()
        assert step is not None
        _synchronize(step, optimizer)

    @tf.function(autograph=False)
    def end() -> None:
        strategy.run(of_replica)

    return end


def _begin(step: Step, optimizer: BaseOptimizer) -> None:
    """Keeps the weights at which a round begins, for an outer optimizer.

    They are read again for each round: the program may have set others since the last one.
    """
    found = vars(optimizer)[_ROUND]
    if found["outer"] is None:
        return

    def keep() -> None:
        for copy, variable in zip(found["began"], variables_of_optimizer(optimizer), strict=True):
            with step.during(Phase.UPDATE):
                copy.assign(tf.cast(tf.convert_to_tensor(_tensorflows(variable)), copy.dtype))

    _if(tf.equal(found["apart"].read_value(), 0), keep)


def _synchronize(step: Step, optimizer: BaseOptimizer) -> None:
    """Ends a round: the replicas' variables become their mean, or what the outer optimizer says."""
    found = vars(optimizer)[_ROUND]
    variables = list(variables_of_optimizer(optimizer))
    values = [tf.convert_to_tensor(_tensorflows(variable)) for variable in variables]
    with step_recording.watching_buckets() as watch:
        sums = step.sum_prepared(
            [tf.cast(value, at_least_float32(value.dtype)) for value in values], None, watch
        )
    ends = [total / tf.cast(step.num_replicas, total.dtype) for total in sums]
    with step.during(Phase.UPDATE), step.replicas.identical_writes():
        if found["outer"] is not None:
            began = found["began"]
            moved = [
                tf.convert_to_tensor(copy.value) - tf.cast(mean, copy.value.dtype)
                for copy, mean in zip(began, ends, strict=True)
            ]
            found["outer"].apply(moved, began)
            ends = [tf.convert_to_tensor(copy.value) for copy in began]
        for variable, end in zip(variables, ends, strict=True):
            held = _tensorflows(variable)
            held.assign(tf.cast(end, held.dtype))
        found["apart"].assign(0)


def _copy(variable: Any) -> keras.Variable:
    held = _tensorflows(variable)
    return keras.Variable(
        tf.zeros(held.shape, at_least_float32(held.dtype)),
        dtype=at_least_float32(held.dtype).name,
        name="at_beginning_of_round",
    )


def _if(condition: tf.Tensor, act: Any) -> None:
    def acted() -> tf.Tensor:
        act()
        return tf.constant(True)

    tf.cond(condition, acted, lambda: tf.constant(False))


def _tensorflows(variable: Any) -> Any:
    """Returns TensorFlow's variable behind one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable
