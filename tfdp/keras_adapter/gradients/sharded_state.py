"""Optimizers of which each replica holds a part of the state: ZeRO (1910.02054).

What an optimizer keeps for a variable, its moving average and its accumulated gradient are made
where it is built, and then cut into a part for each replica:

1. Where the optimizer is elementwise, which `elementwise` shows, each replica has a slice of each
   variable. Otherwise it has some variables whole, and the others not at all.
2. In a step each replica gets its part of the gradients' sums (a reduce-scatter).
3. Norms for clipping and the vote on finite gradients are those of all parts.
4. The replica updates its part, as one device does, in a variable that stands for it.
5. All get the updated parts (an all-gather), and write the whole variables.

Moving averages are cut into slices in any case. What has no axis with an element for each replica,
is no floating-point number, or is overwritten with its gradient, every replica keeps and updates as
a whole.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    key_of_variable,
    strategy_of_optimizer,
    value_of_variable,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients import elementwise, scratch_copies
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.keras_adapter.step import Phase, Step
from tfdp.replicas import Replicas, replicas_of
from tfdp.sharding import Cut, even_cuts, largest_share, whole_cuts

# The attribute of an optimizer that says how it is cut. Keras would track one that is set.
_SHARDS = "tfdp_shards"

# The methods that are given parts of gradients, or take parts for whole variables.
_SEES_PARTS = (
    "apply",
    "apply_gradients",
    "_backend_apply_gradients",
    "_filter_empty_gradients",
    "_overwrite_variables_directly_with_gradients",
    "_clip_gradients",
    "_backend_update_step",
    "_backend_increment_gradient_accumulators",
    "_update_model_variables_moving_average",
    "_overwrite_model_variables_with_average_value",
)

# An imbalance that is worth a warning, in even shares.
_UNEVEN = 1.1

# How many elements of whole variables each replica holds of the optimizers that are being built
# together, as those in a `MultiOptimizer` are; and of all that were built before with the replicas.
_DEALT: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("dealt", default=None)
_BEFORE: weakref.WeakKeyDictionary[Replicas, list[int]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass
class Shards:
    """How the variables of an optimizer are cut.

    Attributes:
      cuts: By the key of each variable that is cut, how.
      averages: By the same keys, how the moving averages of `use_ema` are cut: always into slices.
      with_average: The keys of variables whose moving averages were made.
      scratch: By the key of each variable that is cut into slices, a variable that stands for the
        replica's slice during an update, and holds nothing between updates.
      told: By the key of each variable that one replica has whole, what is kept for it and cannot
        be cut, such as a second moment of all of it: all get that replica's value.
    """

    cuts: dict[str, Cut]
    averages: dict[str, Cut]
    with_average: set[str] = dataclasses.field(default_factory=set)
    scratch: dict[str, Any] = dataclasses.field(default_factory=dict)
    told: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


class State(keras.Variable):  # type: ignore[misc]
    """What an optimizer keeps for a variable, of which each replica holds a part."""

    @property
    def shape(self) -> tf.TensorShape:
        """The part's shape in a replica function; outside the whole's."""
        return self._value.shape


def shards_of(optimizer: BaseOptimizer) -> Shards | None:
    """Returns how a built optimizer is cut; None if it is not."""
    found: Shards | None = vars(optimizer).get(_SHARDS)
    return found


def is_cut(variable: Any) -> bool:
    """Returns whether each replica holds a part of a variable of Keras."""
    return hasattr(variable.value, "cut")


@contextlib.contextmanager
def cutting(optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
    """Cuts what an optimizer keeps for its variables, which is built within the context.

    It may be built by several methods, which call each other.

    Raises:
      ValueError: Its state cannot be sharded.
    """
    known = vars(optimizer)
    replicas = replicas_of(strategy_of_optimizer(optimizer))
    if _SHARDS in known or replicas is None or replicas.exchange.shard is None:
        yield
        return
    with _dealing(optimizer, replicas) as dealt:
        _prepare(optimizer, variables, replicas, dealt)
        try:
            yield
            _finish(optimizer)
        except BaseException:
            known.pop(_SHARDS, None)
            raise


@contextlib.contextmanager
def _dealing(optimizer: BaseOptimizer, replicas: Replicas) -> Iterator[list[int]]:
    """Yields how much of whole variables each replica holds of what is built within the outermost.

    The log says at its end how even that is.
    """
    outer = _DEALT.get()
    if outer is not None:
        yield outer
        return
    dealt = [0] * replicas.num_replicas
    token = _DEALT.set(dealt)
    try:
        yield dealt
    finally:
        _DEALT.reset(token)
    if any(dealt):
        before = _before(replicas)
        _BEFORE[replicas] = [own + other for own, other in zip(dealt, before, strict=True)]
        _report_balance(optimizer, dealt, replicas)


def _before(replicas: Replicas) -> list[int]:
    return _BEFORE.get(replicas, [0] * replicas.num_replicas)


def _prepare(
    optimizer: BaseOptimizer, variables: Sequence[Any], replicas: Replicas, dealt: list[int]
) -> None:
    is_wrapper = innermost(optimizer) != [optimizer] or hasattr(optimizer, "optimizers")
    _check_class(optimizer)
    if is_wrapper:
        return
    count = replicas.num_replicas
    chosen = [variable for variable in variables if _can_be_cut(variable, count)]
    shapes = [tuple(map(int, variable.shape)) for variable in chosen]
    cuts = slices = even_cuts(shapes, count)
    try:
        axes = dict(zip(map(id, chosen), [cut.axis for cut in cuts], strict=True))
        likes = [_like(each, axes.get(id(each))) for each in variables if _is_updated(each)]
        if not elementwise.is_elementwise(optimizer, likes):
            cuts = whole_cuts(shapes, dealt, _before(replicas))
    except scratch_copies.NotProven as reason:
        raise ValueError(
            f"An optimizer must update its variables apart from each other to be sharded, but of "
            f"{type(optimizer).__name__} that could not be shown: {reason}. Give it a `get_config` "
            "that `from_config` can read, and let `update_step` use nothing but the variable that "
            "it is given and what the optimizer keeps for that one; or leave `shard` out."
        ) from reason
    keys = [key_of_variable(optimizer, variable) for variable in chosen]
    vars(optimizer)[_SHARDS] = Shards(
        dict(zip(keys, cuts, strict=True)), averages=dict(zip(keys, slices, strict=True))
    )


def _finish(optimizer: BaseOptimizer) -> None:
    """Cuts what an optimizer keeps beside slots of Keras' own kind, and makes what updates use."""
    shards = shards_of(optimizer)
    replicas = replicas_of(strategy_of_optimizer(optimizer))
    if shards is None or replicas is None:
        return
    variables = list(variables_of_optimizer(optimizer))
    slots = scratch_copies.slots_of(optimizer, len(variables))
    for variable, kept in zip(variables, slots, strict=True):
        key = key_of_variable(optimizer, variable)
        cut = shards.cuts.get(key)
        if cut is None:
            continue
        for slot in kept:
            is_window = slot.value.synchronization == tf.VariableSynchronization.ON_READ
            own = None if is_window or is_cut(slot) else _cut_like(slot, cut)
            if own is not None:
                cut_state(replicas, slot, own)
            elif _is_owned(cut) and not is_window and not is_cut(slot):
                shards.told.setdefault(key, []).append(slot)
    for variable in variables:
        key = key_of_variable(optimizer, variable)
        cut = shards.cuts.get(key)
        if cut is not None and not _is_owned(cut):
            shards.scratch[key] = _scratch(replicas, variable, cut)


def _cut_like(slot: Any, cut: Cut) -> Cut | None:
    """Returns how a slot of any shape is cut whose variable is; None if all replicas keep it."""
    shape = tuple(map(int, slot.shape))
    if _is_owned(cut) and shape and shape[0]:  # such as Adafactor's means over rows and columns
        return Cut(shape, 0, tuple(shape[0] if bound else 0 for bound in cut.bounds))
    if len(shape) > cut.axis and shape[cut.axis] == cut.shape[cut.axis]:  # such as means of rows
        return Cut(shape, cut.axis, cut.bounds)
    return None


def making(optimizer: BaseOptimizer, initializer: Any) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which zeros for a slot are not sent by rank 0, for most are cut off."""
    replicas = replicas_of(strategy_of_optimizer(optimizer))
    if replicas is None or shards_of(optimizer) is None or initializer != "zeros":
        return contextlib.nullcontext()
    return replicas.made_alone()


def cut_slot(optimizer: BaseOptimizer, reference: Any, name: str | None, slot: Any) -> Any:
    """Cuts a slot of some name that was just made for a variable, and returns it."""
    shards, replicas = shards_of(optimizer), replicas_of(strategy_of_optimizer(optimizer))
    if shards is None or replicas is None:
        return slot
    key = key_of_variable(optimizer, reference)
    cuts = shards.cuts
    if name == "average" and optimizer.use_ema and key not in shards.with_average:
        # Keras makes these before all others; an optimizer may have a slot of the name, too.
        shards.with_average.add(key)
        cuts = shards.averages
    cut = cuts.get(key)
    if cut is not None and tuple(slot.shape) == cut.shape:
        cut_state(replicas, slot, cut)
    return slot


def cut_state(replicas: Replicas, slot: Any, cut: Cut) -> None:
    """Leaves to each replica its part of what a slot holds."""
    whole = slot.value
    value_of_variable.set(slot, replicas.parted(whole, cut))
    slot.__class__ = State
    _empty_all(whole)  # what still refers to it must not keep the memory


def cuts_of(step: Step, optimizer: BaseOptimizer, variables: Sequence[Any]) -> list[Cut | None]:
    """Returns for each of the variables how it is cut; the optimizer is built if it is not.

    Args:
      step: The replica's step.
      optimizer: The outermost optimizer.
      variables: The variables that it is to update.
    """
    if not optimizer.built:
        with step.during(Phase.UPDATE), keras.name_scope(optimizer.name):
            optimizer.build(list(variables))
        optimizer.built = True
    known: dict[str, Cut] = {}
    for one in innermost(optimizer):
        shards = shards_of(one)
        known |= {} if shards is None else shards.cuts
    return [known.get(key_of_variable(optimizer, variable)) for variable in variables]


def _check_class(optimizer: BaseOptimizer) -> None:
    """Raises ValueError if a method of the user's own would see parts in place of wholes."""
    for name in _SEES_PARTS:
        owner = next(cls for cls in type(optimizer).__mro__ if name in vars(cls))
        if owner.__module__.partition(".")[0] not in ("keras", "tfdp"):
            raise ValueError(
                f"An optimizer must override `update_step` alone to be sharded, but "
                f"{owner.__name__} has a `{name}` of its own, which would see parts of gradients. "
                "Move what it does into `update_step(gradient, variable, learning_rate)`, or leave "
                "`shard` out."
            )


def _is_updated(variable: Any) -> bool:
    """Returns whether a variable is of floating-point numbers, and updated by gradients."""
    shape = tf.TensorShape(variable.shape)
    floating = shape.is_fully_defined() and tf.as_dtype(variable.dtype).is_floating
    return floating and not getattr(variable, "overwrite_with_gradient", False)


def _can_be_cut(variable: Any, replicas: int) -> bool:
    """Returns whether a variable is updated, and has an axis to be cut along."""
    if not _is_updated(variable):
        return False
    shape = tuple(map(int, variable.shape))
    return 0 not in shape and max(shape, default=0) >= replicas


def _like(variable: Any, axis: int | None) -> scratch_copies.Like:
    path = getattr(variable, "path", None) or variable.name.partition(":")[0]
    return scratch_copies.Like(path, tuple(map(int, variable.shape)), axis)


def _is_owned(cut: Cut) -> bool:
    return cut.owner is not None and cut.axis == 0


def _report_balance(optimizer: BaseOptimizer, dealt: Sequence[int], replicas: Replicas) -> None:
    share = largest_share(dealt)
    if replicas.processes.rank == 0:
        log = logging.getLogger("tfdp")
        (log.warning if share > _UNEVEN else log.info)(
            "Where %s is not elementwise, each replica keeps the state of whole variables: the one "
            "with most has %.2f times an even share.",
            type(optimizer).__name__,
            share,
        )


def _scratch(replicas: Replicas, variable: Any, cut: Cut) -> Any:
    """Makes the variable that stands for a replica's slice of another, without content."""
    held = variable.value if isinstance(variable, keras.Variable) else variable
    made: Any = replicas.parted(held, cut)
    made.stands_for = held
    _empty_all(made)
    return made


def _empty_all(variable: Any) -> None:
    """Leaves nothing in the copies, or parts, of a variable."""
    with tf.init_scope():
        for one in variable.values:
            with tf.device(one.device):
                emptied(one, tf.constant(0))


def fill(variable: tf.Variable, value: tf.Tensor) -> None:
    """Gives a variable a value, of whatever shape."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value, validate_shape=False)


def emptied(variable: tf.Variable, updates: tf.Tensor) -> tf.Tensor:
    """Returns a variable's value, and leaves nothing in it until it is filled again.

    Args:
      variable: The variable.
      updates: A number that is not negative. TensorFlow must not see, where it builds a graph, that
        what is left has another shape than the variable.
    """
    value = variable.read_value()
    # A copy, for no rows of a tensor would keep the memory of all of it.
    nothing = tf.raw_ops.DeepCopy(x=value[: tf.minimum(tf.cast(updates, tf.int32), 0)])
    with tf.control_dependencies([value]):
        fill(variable, nothing)
    return value
