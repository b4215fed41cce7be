"""What the replicas of a strategy do together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tfdp.collectives import Value
from tfdp.recording import Watch
from tfdp.replicas.process_group import ProcessGroup

# What has rows: a tensor, a ragged one, or a distributed value of these.
Rows: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.distribute.DistributedValues

# What is done to a buffer before it is sent, element by element.
Prepare: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Trace:
    """Whose step a replica function is while it is traced, or run eagerly.

    Today each replica is traced by itself. Nothing here is for arithmetic, which `replica_id` is
    for: where one trace serves all replicas, there is one with the index 0.

    Attributes:
      index: The number of the trace among those of this process, in the order of its devices.
      of_first: Whether it is the first replica's of all, or that of all: what is said once for all
        replicas is said here.
      name: What errors call the replica, such as "replica 1".
    """

    index: int
    of_first: bool
    name: str


class Replicas(Protocol):
    """Replicas of a model, in one process or many, each with a copy of every variable.

    All replicas must call the same operations in the same order.
    """

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""

    @property
    def processes(self) -> ProcessGroup:
        """The processes that the replicas are in."""

    @property
    def replica_id(self) -> tf.Tensor:
        """The number of the calling replica among all, a scalar int32."""

    def trace(self) -> Trace:
        """Whose step the calling replica function is."""

    # ---- in a replica function

    def sum(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the replicas; differentiable.

        Sends the bytes as the topology has it, in as few collectives as can be.
        """

    def sum_prepared(
        self,
        values: Sequence[Value],
        prepare: Prepare | None = None,
        merge_rows: bool = False,
        watch: Watch | None = None,
    ) -> list[Value]:
        """Sums each value over the replicas; no gradient flows through.

        Args:
          values: Tensors and IndexedSlices.
          prepare: Applied to what is sent: once for each bucket in a graph.
          merge_rows: Whether slices may be summed by row before they travel.
          watch: Is told of what is sent in a graph.
        """

    def broadcast_from_first(self, value: Value, dtype: tf.DType) -> Value:
        """Gives the first replica's `value` on every replica.

        Args:
          value: Numbers or booleans; a Python number becomes a tensor.
          dtype: That of the tensor then.

        Raises:
          TypeError: The value holds neither.
        """

    def identical_writes(self) -> contextlib.AbstractContextManager[None]:
        """Within it every replica writes the same values: nothing is sent to make sure."""

    # ---- between replica functions

    def gather_rows(self, value: Rows) -> Rows:
        """Gives the rows of all replicas on every process, in order."""

    def summed_on_read(self) -> contextlib.AbstractContextManager[None]:
        """Variables made within it hold a share for each replica; outside their sum is read."""

    def sums_read_once(
        self, shared: Sequence[tf.Variable]
    ) -> contextlib.AbstractContextManager[None]:
        """Within it this process reads by itself what `shared` variables hold together.

        All processes must enter it: they sum each of the variables there.
        """

    def made_alone(self) -> contextlib.AbstractContextManager[None]:
        """Within it this process makes variables for itself: no other is asked for their values."""
