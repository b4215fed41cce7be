"""The computation of one replica in a step, and its gradients."""

import dataclasses
import math
from collections.abc import Sequence

from tfdp.base import bucketing

#: The slots of Keras' optimizers: numbers kept for each weight.
SLOTS = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "lion": 1,
    "muon": 1,
    "rmsprop": 1,
    "adafactor": 0,
    "lars": 1,
    "adadelta": 2,
    "adam": 2,
    "adamax": 2,
    "adamw": 2,
    "ftrl": 2,
    "lamb": 2,
    "nadam": 2,
}


@dataclasses.dataclass(frozen=True)
class GradientTensor:
    """The gradient of one variable.

    Attributes:
      shape: The variable's shape.
      work: The share of the backward pass that is done with it, on any scale.
      itemsize: The bytes of a number.
      rows: The rows of a table that a replica looks up in a step, whose gradients are collected
        from all replicas in place of a sum; 0: the gradient is summed.

    >>> GradientTensor((4, 8)).size_bytes, GradientTensor((4, 8)).elements
    (128, 32)
    """

    shape: tuple[int, ...]
    work: float = 1.0
    itemsize: int = 4
    rows: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def row_bytes(self) -> int:
        """The bytes of the rows that a replica looks up, with their numbers of 8 bytes."""
        return self.rows * (self.shape[-1] * self.itemsize + 8)


@dataclasses.dataclass(frozen=True)
class Normalized:
    """A layer that normalizes by the whole batch's statistics.

    Attributes:
      channels: The number of its means, and of its variances.
      is_plain: Whether a strategy's `batch_normalization` makes them a replica's own.

    >>> [tensor.size_bytes for tensor in Normalized(64).sums]
    [1024, 512]
    """

    channels: int
    is_plain: bool = True

    @property
    def sums(self) -> tuple[GradientTensor, GradientTensor]:
        """What replicas sum in the forward pass, in float64, and in the backward pass."""
        return GradientTensor((2, self.channels), itemsize=8), GradientTensor((2, self.channels))


@dataclasses.dataclass(frozen=True)
class Workload:
    """A replica's step without the other replicas.

    Attributes:
      tensors: The gradients, in the order of the model's variables.
      forward_seconds: The forward pass of a replica's batch.
      backward_seconds: The backward pass.
      update_seconds: The optimizer's update.
      other_seconds: The rest of a step: input that is waited for, Keras, callbacks, launches.
      first_seconds: The first step beyond the others, which is traced; None: not known.
      batch: The examples of a replica in a step.
      slots: The numbers that the optimizer keeps for each weight.
      activation_bytes: What the forward pass keeps for the backward pass.
      frozen_bytes: The weights that are not trained.
      deviation: The relative standard deviation of a replica's forward and backward pass from step
        to step and rank to rank.
      normalized: The layers with statistics of the whole batch.

    >>> work = Workload((GradientTensor((100, 10)),), 0.01, 0.02, batch=8)
    >>> work.parameters, work.compute_seconds
    (1000, 0.03)
    """

    tensors: tuple[GradientTensor, ...]
    forward_seconds: float
    backward_seconds: float
    update_seconds: float = 0.0
    other_seconds: float = 0.0
    first_seconds: float | None = None
    batch: int = 1
    slots: int = 0
    activation_bytes: float = 0.0
    frozen_bytes: float = 0.0
    deviation: float = 0.0
    normalized: tuple[Normalized, ...] = ()

    @property
    def parameters(self) -> int:
        """The number of weights that are trained."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def gradient_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def compute_seconds(self) -> float:
        """The forward and backward pass."""
        return self.forward_seconds + self.backward_seconds


@dataclasses.dataclass(frozen=True)
class GradientBucket:
    """Gradients that travel together.

    Attributes:
      tensors: The gradients.
      ready: The share of the backward pass after which all of them are there.

    >>> GradientBucket((GradientTensor((4,)),), 1.0).size_bytes
    16
    """

    tensors: tuple[GradientTensor, ...]
    ready: float

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)


def buckets(tensors: Sequence[GradientTensor], bucket_bytes: int) -> list[GradientBucket]:
    """Returns the buckets in the order in which they fill: the backward pass begins at the end.

    Args:
      tensors: The gradients, in the order of the model's variables.
      bucket_bytes: See :func:`tfdp.base.bucketing.assign`, which says what travels together.

    >>> [bucket.ready for bucket in buckets([GradientTensor((2**20,))] * 4, 2**20)]
    [0.25, 0.5, 0.75, 1.0]
    """
    backwards = list(reversed(tensors))
    items = [
        bucketing.Item(tensor.itemsize, None if tensor.rows else tensor.size_bytes)
        for tensor in backwards
    ]
    total = sum(tensor.work for tensor in backwards) or 1.0
    done, ready = 0.0, []
    for tensor in backwards:
        done += tensor.work
        ready.append(done / total)
    found = [
        GradientBucket(tuple(backwards[index] for index in members), ready[max(members)])
        for members in bucketing.assign(items, bucket_bytes)
    ]
    return sorted(found, key=lambda bucket: bucket.ready)


def even_tensors(parameters: int, count: int = 50) -> tuple[GradientTensor, ...]:
    """Returns square gradients, where nothing is known but the number of weights, and the rest.

    >>> [tensor.shape for tensor in even_tensors(1003, 2)]
    [(22, 22), (22, 22), (35,)]
    """
    count = max(1, min(count, parameters))
    side = math.isqrt(parameters // count)
    rest = parameters - count * side**2
    square = GradientTensor((side, side), work=side**2)
    return (square,) * count + ((GradientTensor((rest,), work=rest),) if rest else ())


def passes(seconds: float) -> tuple[float, float]:
    """Returns the seconds of a forward and a backward pass that take so long together.

    The backward pass has two products for each of the forward pass.

    >>> passes(0.75)
    (0.25, 0.5)
    """
    return seconds / 3, 2 * seconds / 3
