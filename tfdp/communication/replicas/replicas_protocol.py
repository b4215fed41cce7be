"""The protocol of the replicas of a strategy: their number, and what they compute together."""

import contextlib
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import CompressBucket, Value
from tfdp.communication.replicas.process_group import ProcessGroup

# A tensor with rows, dense or ragged, or a distributed value of such tensors.
Rows: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.distribute.DistributedValues


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

    # ---- in a replica function

    @property
    def rank(self) -> int:
        """The number of the calling replica among all: each is traced by itself."""

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
          compress: Whether the strategy's `compression` is used, in a graph. It is meant for
            gradients, and for nothing else.
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
        """Sums gradients over the replicas as `compress` does, in a graph, without a gradient.

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

        It is called in a graph. Sends the tensors' bytes once for each neighbour.

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

    def parted(self, variable: tf.Variable, sharding: Sharding) -> tf.Variable:
        """Returns a variable of which each replica holds its part of a whole one's value.

        In a replica function it is the part. Outside, it reads as the whole, which all processes
        must ask for together, and takes a whole to be assigned.

        Args:
          variable: A variable with a copy on each replica, in which nothing is left.
          sharding: The sharding into the replicas' parts.
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
