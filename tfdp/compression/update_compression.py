"""Compressions of updates, which know variable, step and state: the definition, option checks."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdp.base import exclusions
from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Transport

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Slot:
    """The state of a compression for a variable, kept from update to update, as float32.

    Attributes:
      shape: The shape.
      of_replica: Whether each replica has its own value; a checkpoint then keeps their sum, which
        fits any number of replicas. If not, all replicas have the same value.
      seed: The seed of the first value's normal numbers; None: zeros.

    >>> Slot((2, 3), of_replica=True).first().numpy().tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    shape: tuple[int, ...]
    of_replica: bool
    seed: int | None = None

    def first(self) -> tf.Tensor:
        """Returns the value before the first update.

        >>> Slot((2,), of_replica=False, seed=1).first().shape.as_list()
        [2]
        """
        if self.seed is None:
            return tf.zeros(self.shape)
        return tf.random.stateless_normal(self.shape, [self.seed, len(self.shape)])


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients of one update that travel together.

    Attributes:
      gradients: The replica's own gradients, float32 of known shapes.
      slots: For each of them the values of its slots, by name.
      numbers: For each of them the number of its variable, the same in all steps.
      step: The number of the update, a scalar int32, the same on all replicas.
      feedback: Whether the next update adds the loss of this one.

    >>> Bucket([tf.ones([2])], [{}], (0,), tf.constant(7)).feedback
    False
    """

    gradients: Sequence[tf.Tensor]
    slots: Sequence[Mapping[str, tf.Tensor]]
    numbers: Sequence[int]
    step: tf.Tensor
    feedback: bool = False

    @classmethod
    def of(cls, *gradients: Any, step: int = 0, slots: Any = None) -> Bucket:
        """Returns a bucket of arrays, for tests and examples.

        >>> Bucket.of([1.0, 2.0]).numbers
        (0,)
        """
        tensors = [tf.convert_to_tensor(value, tf.float32) for value in gradients]
        return cls(
            tensors,
            slots or [{} for _ in tensors],
            tuple(range(len(tensors))),
            tf.constant(step, tf.int32),
        )

    def seed(self, seed: int, *folded: int | tf.Tensor) -> tf.Tensor:
        """Returns a seed for TensorFlow's stateless functions, different in each update.

        Args:
          seed: The compression's seed.
          folded: More numbers, to distinguish the draws of one update.

        >>> bucket = Bucket.of([1.0])
        >>> bool(tf.reduce_all(bucket.seed(1, 2) == bucket.seed(1, 3)))
        False
        """
        result = tf.stack([tf.constant(seed, tf.int32), self.step])
        for number in folded:
            result = tf.random.fold_in(result, tf.cast(number, tf.int32))
        return result


@dataclasses.dataclass(frozen=True)
class Sums:
    """The result for a bucket.

    Attributes:
      sums: For each gradient the decompressed sum over replicas, the same bits on all; or this
        replica's shard of it.
      own: For each gradient this replica's term: the terms of all replicas add up to the sum.
      slots: For each gradient the new values of its slots.

    >>> Sums([tf.ones([2])], own=[tf.ones([2])], slots=[{}]).slots
    [{}]
    """

    sums: Sequence[tf.Tensor]
    own: Sequence[tf.Tensor]
    slots: Sequence[Mapping[str, tf.Tensor]]


class UpdateCompression(abc.ABC):
    """A rule for summing the gradients of an optimizer. Subclasses are frozen dataclasses.

    Unlike a `Compression`, which sees anonymous buckets, it knows the variable of each gradient,
    the number of the update, and its own state for the variable.

    Attributes:
      feeds_back: Whether it adds its losses to later updates by itself. Then `ErrorFeedback` is
        refused.
      has_momentum: Whether it computes the momentum in place of the optimizer. Then every gradient
        must go through it.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Whole(UpdateCompression):
    ...     def takes(self, variables):
    ...         return tuple(True for _ in variables)
    ...
    ...     def slots(self, shape):
    ...         return {}
    ...
    ...     def compressed(self, bucket, transport):
    ...         sums = [transport.sum(gradient) for gradient in bucket.gradients]
    ...         return Sums(sums, bucket.gradients, bucket.slots)
    >>> twice = Transport(lambda value: 2 * value)
    >>> Whole().sum(Bucket.of([1.0, 2.0]), twice).sums[0].numpy().tolist()
    [1.0, 2.0]
    >>> Whole().compressed(Bucket.of([1.0, 2.0]), twice).sums[0].numpy().tolist()
    [2.0, 4.0]
    >>> Whole().takes(["kernel"]), Whole().slots((2,))
    ((True,), {})
    """

    feeds_back: ClassVar[bool] = False
    has_momentum: ClassVar[bool] = False

    @property
    def sums_parts(self) -> bool:
        """Whether it has `compressed_parts`.

        >>> from tfdp.compression import ErrorFeedback, Int8, TopK
        >>> ErrorFeedback(Int8()).sums_parts, TopK(0.5).sums_parts
        (True, False)
        """
        return False

    @abc.abstractmethod
    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns for each Keras variable whether this compression sums its gradient."""

    def takes_rows_of(self, variable: Any) -> bool:
        """Returns whether a gradient of rows (tf.IndexedSlices) is made dense before it is summed.

        If not, replicas gather the rows. tfdp asks it for variables that this compression takes.

        >>> from tfdp.compression import TopK
        >>> table = tf.Variable(tf.zeros([300, 20]))
        >>> TopK(0.5).takes_rows_of(table), TopK(0.5, largest_table=256).takes_rows_of(table)
        (True, False)
        """
        return False

    @abc.abstractmethod
    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns the slots of a variable of this shape, by name."""

    def slots_of(self, variables: Sequence[Any]) -> list[dict[str, Slot] | None]:
        """Returns the slots of each Keras variable; None: its gradient is summed without this.

        >>> from tfdp.compression import TopK
        >>> TopK(0.5).slots_of([])
        []
        """
        return [
            self.slots(tuple(variable.shape)) if taken else None
            for variable, taken in zip(variables, self.takes(variables), strict=True)
        ]

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the payload's bytes for a gradient of this shape, by which buckets are filled.

        By default the bytes of the gradient.

        >>> from tfdp.compression import BetweenHosts, TopK
        >>> TopK(0.01).payload_bytes((200, 100)), BetweenHosts(TopK(0.01)).payload_bytes((200, 100))
        (1600, 80000)
        """
        return _FLOAT_BYTES * math.prod(shape)

    @abc.abstractmethod
    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums over all replicas, of which there are at least two."""

    def compressed_parts(
        self, bucket: Bucket, shardings: Sequence[Sharding], transport: Transport
    ) -> Sums:
        """Returns this replica's shards of the sums over all replicas, and its terms unsharded.

        tfdp calls it if `sums_parts`, with two replicas or more.

        Args:
          bucket: The gradients, not sharded.
          shardings: The sharding of each gradient over the replicas.
          transport: Sends the payloads.

        >>> from tfdp.communication.collectives import Transport
        >>> from tfdp.compression import Bucket, ErrorFeedback, Int8
        >>> bucket = Bucket.of([127.0, -5.0, 0.0], slots=[{"residual": tf.zeros([3])}])
        >>> sharding = Sharding((3,), axis=0, bounds=(0, 3))
        >>> feedback = ErrorFeedback(Int8(block=4))
        >>> found = feedback.compressed_parts(bucket, [sharding], Transport(tf.identity))
        >>> found.sums[0].numpy().tolist()
        [127.0, -5.0, 0.0]
        """
        raise NotImplementedError

    def sum(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums over all replicas. One replica's gradients are the sums already."""
        if transport.world_size == 1:
            return Sums(bucket.gradients, bucket.gradients, bucket.slots)
        return self.compressed(bucket, transport)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractLossyCompression(UpdateCompression):
    """A compression that can leave some gradients uncompressed.

    Args:
      exclude: Patterns of the paths of variables whose gradients travel uncompressed. None: biases
        and the weights of normalization, as in `tfdp.optimizers.LARS`.
      smallest: The least number of elements of a compressed gradient. Smaller ones would take
        longer to compress than to send.
      largest_table: The most rows of a table, such as that of `keras.layers.Embedding`, whose
        gradient (`tf.IndexedSlices`) is made dense, as if the table were multiplied by one-hot
        rows, and compressed. For larger tables replicas gather the batch's rows. 0: for all.

    Raises:
      ValueError: A pattern is no regular expression, or a number is below 1.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Half(AbstractLossyCompression):
    ...     def compressed(self, bucket, transport):
    ...         own = [gradient / 2 for gradient in bucket.gradients]
    ...         return Sums([transport.sum(value) for value in own], own, bucket.slots)
    >>> half = Half(smallest=100)
    >>> half.takes_shape((10, 10)), Half().takes_shape((10, 10)), half.slots((10, 10))
    (True, False, {})
    >>> import keras
    >>> half.takes([keras.Variable(tf.zeros([200]), name=name) for name in ("kernel", "bias")])
    (True, False)
    """

    exclude: tuple[str, ...] | None = None
    smallest: int = 4096
    largest_table: int = 4096

    def __post_init__(self) -> None:
        object.__setattr__(self, "exclude", exclusions.checked("exclude", self.exclude))
        check_integer(self, "smallest", 1)
        check_integer(self, "largest_table", 0)

    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns whether a gradient is compressed: float32, large enough, and not excluded."""
        left_out = exclusions.excluded("exclude", self.exclude, variables, lenient=True)
        return tuple(
            not left and variable.dtype == "float32" and self.takes_shape(tuple(variable.shape))
            for left, variable in zip(left_out, variables, strict=True)
        )

    def takes_rows_of(self, variable: Any) -> bool:
        """Returns whether a table is small enough for its gradient to be made dense."""
        return 0 < variable.shape[0] <= self.largest_table

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Returns whether a gradient of this shape is compressed, whatever its variable."""
        return math.prod(shape) >= self.smallest

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns no slots."""
        return {}


def poison(tensor: tf.Tensor, axis: int | None = None, keepdims: bool = False) -> tf.Tensor:
    """Returns 0 if all numbers are finite, else NaN: added to what is sent, it reaches everybody.

    >>> float(poison(tf.constant([1.0, -2.0]))), float(poison(tf.constant([1.0, float("inf")])))
    (0.0, nan)
    """
    finite = tf.reduce_all(tf.math.is_finite(tensor), axis, keepdims=keepdims)
    return tf.where(finite, 0.0, float("nan"))


def check_ratio(compression: Any, name: str) -> None:
    """Raises ValueError unless the attribute is a number above 0 and at most 1."""
    value = getattr(compression, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0 < value <= 1):
        kind = type(compression).__name__
        raise ValueError(
            f"`{name}` of `{kind}` must be above 0 and at most 1, but received {value!r}. Use "
            f"{kind}({name}=0.01) to send one number in a hundred."
        )


def check_integer(compression: Any, name: str, least: int, multiple_of: int = 1) -> None:
    """Raises ValueError unless the attribute is such an integer, and an int32."""
    value = getattr(compression, name)
    kind, example = type(compression).__name__, max(least, multiple_of)
    bounds, fix = f"of at least {least}", f"Use {kind}({name}={example}) or more."
    if multiple_of > 1:
        bounds += f" and a multiple of {multiple_of}"
    if not isinstance(value, int) or isinstance(value, bool):
        is_right = False
    elif value >= 2**31:
        is_right, bounds, fix = False, "below 2**31", f"Use {kind}({name}={example}), for example."
    else:
        is_right = value >= least and value % multiple_of == 0
    if not is_right:
        raise ValueError(
            f"`{name}` of `{kind}` must be an integer {bounds}, but received {value!r}. {fix}"
        )
