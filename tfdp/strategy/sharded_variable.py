"""Variables of which each replica holds a part: a sharded optimizer's state, and weights."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.replicas import can_be_sharded, one_device
from tfdp.strategy import mirrored_variables
from tfdp.strategy._tensorflow import (
    Mirrored,
    SingleDevice,
    UninitializedVariable,
    get_update_replica_id,
    regroup,
)
from tfdp.strategy._tensorflow_programs import container_of_copy

# What has fewer elements stays whole under shard="parameters": to gather it costs a collective's
# latency, which is more than its bytes; and a product adds a bias that is there at once.
SMALLEST_SHARD = 2**16


class ShardedVariable(mirrored_variables.ReplicaMirroredVariable):
    """A variable of which each replica holds its part.

    In a replica function it is the part. Outside it reads as the whole, gathered from all
    processes, which must read it together, and takes a whole to be assigned.

    Attributes:
      sharding: The sharding into the replicas' parts.
      first_rank: The number of this process' first replica.
      whole: A variable of the whole's shape that holds nothing, which a program uses that is traced
        as on one device.
    """

    sharding: Sharding
    first_rank: int
    whole: tf.Variable

    def __getitem__(self, place: Any) -> Any:
        """A part of the value, which is read alone: `place` is one in the replica's own part."""
        read, own_name = super().__getitem__(place), self.name

        def assign(value: Any, name: str | None = None) -> Any:
            raise NotImplementedError(
                "A sharded variable is written whole, or by its optimizer, but some places of "
                f"{own_name!r} were assigned. Use `variable.assign(...)` of the whole value."
            )

        read.assign = assign
        return read

    @property
    def _primary(self) -> Any:
        """The copy that TensorFlow takes for all: where one device is traced, the whole."""
        return self.whole if one_device.is_traced() else super()._primary

    @property
    def _unique_id(self) -> str:
        """By which optimizers know it: the same where one device is traced."""
        return self.values[0]._unique_id

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the replica's part; where one device is traced, the whole's.

        Raises:
          ValueError: A weight's is asked for outside of replicas.
        """
        if one_device.is_traced():
            return self.whole.handle
        if self.trainable and not self._is_read_as_any() and get_update_replica_id() is None:
            raise ValueError(
                'A gradient with respect to a weight under shard="parameters" must be taken in '
                f"a program of all replicas, which each hold a part, but that of {self.name!r} is "
                "taken outside. Decorate the step with `@strategy.partitioned` in place of "
                "`@tf.function`, or use `fit`."
            )
        return super().handle

    def _get_on_device_or_primary(self) -> Any:
        return self.whole if one_device.is_traced() else super()._get_on_device_or_primary()

    @property
    def shape(self) -> tf.TensorShape:
        """The part's shape in a replica function; outside the whole's."""
        if self._is_read_as_any():
            return self._get_on_device_or_primary().shape
        return tf.TensorShape(self.sharding.shape)

    def get_shape(self) -> tf.TensorShape:
        """The same as `shape`."""
        return self.shape

    def _is_read_as_any(self) -> bool:
        in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        return in_replica or one_device.is_traced()

    def _get(self) -> Any:
        if one_device.is_traced():
            return self.whole
        if self.trainable and self._is_read_as_any():
            raise ValueError(
                f'A weight under shard="parameters" must be read in a program of one device, '
                f"in which it is gathered, but {self.name!r} is read in a replica function of "
                "`strategy.run`, whose replica has a part of it. Train by `model.fit`, or make the "
                "step a function of the whole batch, for `strategy.partitioned`; or use "
                'shard="gradients".'
            )
        return super()._get()

    def _get_cross_replica(self) -> tf.Tensor:
        known = mirrored_variables.known_value(self)
        return self.distribute_strategy.extended.whole_of(self) if known is None else known

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        replica = get_update_replica_id()
        if replica is not None:  # of `extended.update`, where it reads as the whole
            whole = tf.convert_to_tensor(value, self.dtype)
            whole.shape.assert_is_compatible_with(self.sharding.shape)
            value = _slice(whole, self.sharding, self.first_rank + replica)
        return super()._update(update_fn, value, **kwargs)

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        if one_device.is_traced():
            return super()._export_to_saved_model_graph(*args, **kwargs)
        raise ValueError(
            "What is saved by tf.saved_model.save must be whole, but each replica holds a part of "
            f"{self.name!r}, which `shard` divides. Use `model.export(path)`, which writes no "
            "optimizer, or `model.save(path)`."
        )

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        part = self._get_on_device_or_primary()
        if tf.is_tensor(value) and value.shape == self.sharding.shape != part.shape:
            # An optimizer that is built in a replica function gives its slots whole values.
            value = value[self.sharding.index(self.first_rank + self.values.index(part))]
        return update_fn(part, value, **kwargs)

    def _update_cross_replica(
        self, update_fn: Callable[..., Any], value: Any, **kwargs: Any
    ) -> None:
        whole = tf.convert_to_tensor(value, self.dtype)
        whole.shape.assert_is_compatible_with(self.sharding.shape)
        for index, part in enumerate(self.values):
            with tf.device(part.device):
                update_fn(part, _slice(whole, self.sharding, self.first_rank + index), **kwargs)


def is_to_be_sharded(variable: Any, replicas: int) -> bool:
    """Returns whether `shard="parameters"` divides a new variable: whether it is a large weight."""
    is_weight = variable.trainable and isinstance(
        variable, mirrored_variables.ReplicaMirroredVariable
    )
    if not (is_weight and can_be_sharded(variable, replicas)):
        return False
    return bool(variable.shape.num_elements() >= SMALLEST_SHARD)


@contextlib.contextmanager
def held_whole(variables: Sequence[ShardedVariable]) -> Iterator[None]:
    """Holds variables whole for what runs as on one device; also those that are made inside."""
    for variable in variables:
        _hold(variable.whole, variable.read_value())
    made = list(variables)
    try:
        with mirrored_variables.noting_sharded(made):
            yield
            for variable in made:
                variable.assign(variable.whole.read_value())
    finally:
        for variable in made:
            release(variable.whole)


def parted(variable: Any, sharding: Sharding, first_rank: int) -> ShardedVariable:
    """Returns a variable of which each replica holds its part of what `variable` holds.

    Args:
      variable: A variable with a copy on each replica, in which nothing is left.
      sharding: The sharding into the replicas' parts.
      first_rank: The number of this process' first replica.
    """
    strategy, trainable = variable.distribute_strategy, variable.trainable
    parts = []
    with tf.init_scope(), tf.name_scope(""):  # the name says where it is
        for index, copy in enumerate(variable.values):
            with tf.device(copy.device):
                own = _slice(copy.read_value(), sharding, first_rank + index)
            with tf.variable_creator_scope(_alone_on(copy.device)):
                name = variable.name.split(":")[0]
                name = f"{name}/part_{first_rank + index}" if index else name
                parts.append(tf.Variable(own, trainable=trainable, name=name))
        made = ShardedVariable(strategy, parts, tf.VariableAggregation.NONE)
        made.whole = UninitializedVariable(
            trainable=trainable,
            shape=sharding.shape,
            dtype=made.dtype,
            name=variable.name.split(":")[0],
        )
    made.sharding, made.first_rank = sharding, first_rank
    setattr(made.whole.handle, container_of_copy, weakref.ref(made))
    held = mirrored_variables.noted_sharded()
    if held is not None:
        with tf.init_scope():
            _hold(made.whole, variable.values[0].read_value())
        held.append(made)
    for copy in variable.values:  # what still refers to it must not keep the memory
        release(copy)
    strategy.extended.note_variable(made)
    return made


def parts_like(variable: ShardedVariable, value: Any) -> Any:
    """Returns the parts for this process' replicas of a whole; of anything else, the value.

    Another variable that is sharded alike, or Keras' of one, has its parts, which can be written.
    """
    held = value if isinstance(value, ShardedVariable) else getattr(value, "value", None)
    if isinstance(held, ShardedVariable) and held.sharding == variable.sharding:
        return Mirrored(held.values)
    shape = getattr(value, "shape", None)  # one of Keras' variables has it, too
    if shape is None or tuple(shape) != variable.sharding.shape:
        return value
    whole, first = tf.convert_to_tensor(value), variable.first_rank
    return regroup(
        tuple(_slice(whole, variable.sharding, first + k) for k in range(len(variable.values)))
    )


def release(variable: tf.Variable) -> None:
    """Leaves nothing in a variable on one device, which is not read before it is written again."""
    with tf.init_scope(), tf.device(variable.device):
        _hold(variable, tf.zeros([0], variable.dtype))


def _hold(variable: tf.Variable, value: tf.Tensor) -> None:
    """Writes a value of another shape than that of the one before, which may be nothing."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _slice(whole: tf.Tensor, sharding: Sharding, rank: int) -> tf.Tensor:
    """Returns a copy of a rank's part. Rows of a tensor would keep the memory of all of it."""
    return tf.raw_ops.DeepCopy(x=whole[sharding.index(rank)])


def _alone_on(device: str) -> Callable[..., Any]:
    """Returns a creator of variables that makes one copy, in the strategy's scope, too."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return next_creator(**{**kwargs, "colocate_with": SingleDevice(device)})

    return create
