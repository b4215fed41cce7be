"""Optimizers of which each replica holds a shard of the state: ZeRO (1910.02054).

What an optimizer keeps for a variable, its moving average and its accumulated gradient are sharded
along an axis of the variable when the optimizer is built. What replicas compute follows from that,
as from any layout of a program (2004.13336): each gets its shard of the gradients' sums, updates
its shard of what is kept, and all get the shards of the update. What an optimizer computes
otherwise than element by element, such as a norm, or what is no floating-point number, is
replicated.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.sharding import Sharding, even_sharding
from tfdp.communication.replicas import Replicas, Value, can_be_sharded, replicas_of, sharding_of
from tfdp.compression import Cast
from tfdp.keras._keras import (
    BaseOptimizer,
    key_of_variable,
    strategy_of_optimizer,
    value_of_variable,
    variables_of_optimizer,
)
from tfdp.keras.nested_optimizers import innermost, is_wrapper
from tfdp.keras.optimizer.update_protocol import Updating, accumulates, check_range, traced_update
from tfdp.partition import part_of_sum

# The attribute of an optimizer with the sharding of each variable, by key. Keras would track one
# that is set.
_SHARDINGS = "tfdp_shardings"

# As with a `Cast` of replicated gradients.
_CAST = (tf.float32, tf.float64)


class State(keras.Variable):  # type: ignore[misc]
    """What an optimizer keeps for a variable, of which each replica holds a shard."""

    @property
    def shape(self) -> tf.TensorShape:
        """The global shape."""
        return self._value.shape


class ShardedUpdates(Updating):
    """Each replica gets its shard of the gradients' sums, where the variable can be sharded.

    Args:
      of_windows: Whether windows are sharded, too; else they are summed at their ends.
      cast: The `Cast` with which sharded gradients travel; None: they are not cast.
    """

    def __init__(self, of_windows: bool, cast: Cast | None = None) -> None:
        self._of_windows, self._cast = of_windows, cast

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Shards what the optimizer keeps; it may be built by several methods, one in the other."""
        known = vars(optimizer)
        replicas = replicas_of(strategy_of_optimizer(optimizer))
        if _SHARDINGS in known or replicas is None or is_wrapper(optimizer):
            yield
            return
        count = replicas.num_replicas
        own = {key_of_variable(optimizer, each): sharding_of(each) for each in variables}
        shardings = {key: sharding for key, sharding in own.items() if sharding is not None}
        others = {
            key: _shape(each)
            for each in variables
            if (key := key_of_variable(optimizer, each)) not in shardings
            and can_be_sharded(each, count)
            and not getattr(each, "overwrite_with_gradient", False)
        }
        even = even_sharding(list(others.values()), count)
        known[_SHARDINGS] = shardings | dict(zip(others, even, strict=True))
        try:
            yield
            _shard_lists(optimizer, replicas)
        except BaseException:
            known.pop(_SHARDINGS, None)
            raise

    def making(
        self, optimizer: BaseOptimizer, initializer: Any, accumulates: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Makes zeros without asking rank 0, for each replica keeps only its shard."""
        replicas = replicas_of(strategy_of_optimizer(optimizer))
        if accumulates and not self._of_windows:
            return super().making(optimizer, initializer, accumulates)
        if replicas is None or initializer != "zeros":
            return contextlib.nullcontext()
        return replicas.made_alone()

    def made(self, optimizer: BaseOptimizer, variable: Any, slot: Any, accumulates: bool) -> None:
        """Shards what has the shape of a sharded variable."""
        if accumulates and not self._of_windows:
            return
        replicas = replicas_of(strategy_of_optimizer(optimizer))
        sharding = sharding_for(optimizer, variable)
        if replicas is not None and sharding is not None and _shape(slot) == sharding.shape:
            _sharded_state(replicas, slot, sharding)
        slot.value.accumulates = accumulates

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Marks gradients, unless windows of replicated ones are accumulated."""
        if self._waits(optimizer):
            if self._cast is not None:
                check_range(self._cast, optimizer)
            return contextlib.nullcontext(gradients)
        return contextlib.nullcontext(self._marked(optimizer, gradients, variables))

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Marks what a window of replicated gradients has accumulated."""
        if not self._waits(traced_update().outermost):
            return list(gradients)
        return self._marked(optimizer, gradients, variables)

    def _waits(self, optimizer: BaseOptimizer) -> bool:
        """Returns whether gradients are marked, and cast, when a window ends, and not before."""
        return accumulates(optimizer) and not self._of_windows

    def _marked(
        self,
        optimizer: BaseOptimizer,
        gradients: Sequence[Value | None],
        variables: Sequence[Any],
    ) -> list[Value | None]:
        """Returns gradients of which replicas go on with parts; rows of tables stay as they are."""
        found = list(gradients)
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=False)):
            sharding = sharding_for(optimizer, variable)
            if sharding is None or not isinstance(gradient, tf.Tensor):
                continue
            dtype = gradient.dtype
            if self._cast is not None and dtype in _CAST:
                dtype = self._cast.dtype
            found[index] = tf.cast(part_of_sum(tf.cast(gradient, dtype), sharding), gradient.dtype)
        return found

    def all_finite(
        self,
        gradients: list[Value | None],
        whole: Callable[[list[Value | None]], Any],
    ) -> Any:
        """Asks by one sum over the replicas' parts, and not for each gradient."""
        tensors = [tf.convert_to_tensor(each) for each in gradients if each is not None]
        against = [tf.math.logical_not(tf.math.is_finite(each)) for each in tensors]
        return tf.add_n([tf.reduce_sum(tf.cast(each, tf.float32)) for each in against]) < 0.5


def _sharded_state(replicas: Replicas, slot: Any, sharding: Sharding) -> None:
    """Leaves to each replica its shard of what a slot holds."""
    value_of_variable.set(slot, replicas.parted(slot.value, sharding))
    slot.__class__ = State


def sharding_for(optimizer: BaseOptimizer, variable: Any) -> Sharding | None:
    """Returns how an optimizer, or one in it, shards what it keeps for a variable; None: not."""
    key = key_of_variable(optimizer, variable)
    found = (_own_shardings(one).get(key) for one in innermost(optimizer))
    return next((sharding for sharding in found if sharding is not None), None)


def _own_shardings(optimizer: BaseOptimizer) -> dict[str, Sharding]:
    found: dict[str, Sharding] = vars(optimizer).get(_SHARDINGS, {})
    return found


def _shard_lists(optimizer: BaseOptimizer, replicas: Replicas) -> None:
    """Shards what an optimizer keeps in lists of its own with a place for each variable."""
    variables = list(variables_of_optimizer(optimizer))
    for name, held in vars(optimizer).items():
        is_list = isinstance(held, (list, tuple)) and len(held) == len(variables)
        if name in ("_variables", "_trainable_variables") or not is_list:
            continue
        for variable, slot in zip(variables, held, strict=True):
            sharding = sharding_for(optimizer, variable)
            if sharding is None or not isinstance(slot, keras.Variable) or sharding_of(slot):
                continue
            is_window = slot.value.synchronization == tf.VariableSynchronization.ON_READ
            own = None if is_window else _sharded_like(_shape(slot), sharding)
            if own is not None:
                _sharded_state(replicas, slot, own)


def _sharded_like(shape: tuple[int, ...], sharding: Sharding) -> Sharding | None:
    """Returns the sharding of a slot of a sharded variable; None if all replicas keep it.

    >>> sharding = Sharding((4, 3), 0, (0, 2, 4))
    >>> _sharded_like((4,), sharding), _sharded_like((3,), sharding)
    (Sharding(shape=(4,), axis=0, bounds=(0, 2, 4)), None)
    """
    axis = sharding.axis
    if len(shape) > axis and shape[axis] == sharding.shape[axis]:  # such as means of rows
        return Sharding(shape, axis, sharding.bounds)
    return None


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(map(int, variable.shape))
