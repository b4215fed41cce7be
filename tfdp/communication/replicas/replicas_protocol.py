"""The protocol of the replicas of a strategy: their number, and what they compute together."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import CompressBucket, Value
from tfdp.communication.replicas.process_group import ProcessGroup

# A tensor with rows, dense or ragged, or a distributed value of such tensors.
Rows: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.distribute.DistributedValues


@dataclasses.dataclass(frozen=True)
class Trace:
    """The identity of the replica function that is being traced, or run eagerly.

    Each replica has a trace of its own today. Arithmetic must use `replica_id` instead: if one
    trace serves all replicas, its index is 0.

    Attributes:
      index: The number of the trace among those of this process, in the order of its devices.
      of_first: Whether the trace serves the first of all replicas. What is to be logged once for
        all replicas is logged in this trace.
      name: The name of the replica in errors, such as "replica 1".
    """

    index: int
    of_first: bool
    name: str


class Replicas(Protocol):
    """The replicas of a model, in one process or many, each with a copy of every variable.

    All replicas must call the same operations in the same order.
    """

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""

    @property
    def processes(self) -> ProcessGroup:
        """The processes that hold the replicas."""

    @property
    def exchange(self) -> object:
        """What they exchange in a training: see `tfdp.compression.exchange`."""

    @property
    def replica_id(self) -> tf.Tensor:
        """The number of the calling replica among all replicas, a scalar int32."""

    def trace(self) -> Trace:
        """Returns the identity of the calling replica function."""

    # ---- in a replica function

    def sum(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the replicas, in as few collectives as possible; differentiable.

        The topology decides how many bytes each rank sends.
        """

    def sum_without_gradient(
        self,
        values: Sequence[Value],
        merge_rows: bool = False,
        compress: bool = False,
    ) -> list[Value]:
        """Sums each value over the replicas, without a gradient.

        Args:
          values: Tensors and IndexedSlices.
          merge_rows: Whether the slices of one row may be summed before they are sent.
          compress: Whether the strategy's `compression` is used. It is meant for gradients, and
            for nothing else.
        """

    def sum_of_first(
        self, values: Sequence[tf.Tensor], rows: tf.Tensor, all_rows: tf.Tensor
    ) -> list[tf.Tensor]:
        """Sums gradients over the replicas that come first, without a gradient.

        The sums are scaled by the number of all examples over that of these replicas'. All replicas
        get the same, and those that come late have waited for no other.

        Args:
          values: Floating-point numbers of known shapes: the replica's terms.
          rows: The number of its examples, an int32 scalar.
          all_rows: Those of all replicas.
        """

    def dropped_examples(self) -> int | None:
        """Returns the examples that updates have done without; None: replicas wait for all."""

    def sum_by(
        self,
        compress: CompressBucket,
        tensors: Sequence[tf.Tensor],
        payload_bytes: Sequence[int],
    ) -> list[tf.Tensor]:
        """Sums gradients over the replicas as `compress` does, without a gradient.

        Args:
          compress: A function that is given positions in `tensors`, and what sends on behalf of
            the replica; it returns the sums of the tensors there, the same bits on all replicas.
          tensors: Gradients of known shapes.
          payload_bytes: For each of them the bytes that stand for it.
        """

    def sum_of_neighbours(
        self,
        tensors: Sequence[tf.Tensor],
        distances: Sequence[int],
    ) -> list[tf.Tensor]:
        """Returns the sum of the caller's tensors and of its neighbours', without a gradient.

        Sends the tensors' bytes once for each neighbour.

        Args:
          tensors: Floating-point or complex numbers of known shapes.
          distances: The caller's number minus a neighbour's, modulo the number of replicas, for
            each neighbour; all differ, and none is 0.
        """

    def broadcast_from_first(self, value: Value, dtype: tf.DType) -> Value:
        """Returns the first replica's `value` on every replica.

        Args:
          value: Numbers or booleans.
          dtype: The dtype of the tensor that a Python number becomes.

        Raises:
          TypeError: The value holds neither numbers nor booleans.
        """

    def identical_writes(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which variables are written without a collective.

        Every replica must write the same values there.
        """

    # ---- between replica functions

    def gather_rows(self, value: Rows) -> Rows:
        """Returns the rows of all replicas, in the order of replicas, on every process."""

    def parted(self, variable: tf.Variable, cut: Sharding) -> tf.Variable:
        """Returns a variable of which each replica holds its part of a whole one's value.

        In a replica function it is the part. Outside, it reads as the whole, which all processes
        must ask for together, and takes a whole to be assigned.

        Args:
          variable: A variable with a copy on each replica, in which nothing is left.
          cut: The cut into the replicas' parts.
        """

    def held_whole(
        self, variables: Sequence[tf.Variable]
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which variables that `parted` has made are whole in this process.

        What is traced there is as on one device, unless there are none.
        """

    def summed_on_read(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which new variables hold one share for each replica.

        Outside of replica functions such a variable reads as the sum of its shares.
        """

    def averaged_on_read(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which new variables hold a value of its own for each replica.

        Outside of replica functions such a variable reads as the mean of its values.
        """

    def sums_read_once(
        self, shared: Sequence[tf.Variable]
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context that sums `shared` variables once, so that one process can read them.

        All processes must enter it, for they sum each variable there. Within it a process reads
        the sums without the others.
        """

    def read_after_round(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which weights are read without asking whether a round is open.

        None may be. A graph that is traced there needs no variable but the weights.
        """

    def made_alone(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which this process makes variables without asking the others."""
