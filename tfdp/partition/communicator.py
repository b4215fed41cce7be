"""The protocol by which the partitioner asks for collectives between replicas."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdp.base.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, as each replica of this process runs it.

    Attributes:
      names: Of each local replica the registered function that takes part. Its arguments are the
        collective's own, then `keys`, then what it captures. It is called as a function, and not
        inlined, so that it may stand in the body of a loop.
      inlined: The same functions for graphs into which they are inlined. They may write into the
        memory of their arguments, and must not stand in a loop.
      dtypes: The dtypes of what it gives.
      captured: Of each local replica what its function captures, tensors of the same dtypes.
      alive: What must live as long as the functions.
      keys: Numbers, int32, that tell this collective from others of the same functions.
      sent: The bytes that a rank sends in code of the replicas' own, where they are known before.
    """

    names: Sequence[str]
    inlined: Sequence[str]
    dtypes: Sequence[tf.DType]
    captured: Sequence[Sequence[tf.Tensor]]
    alive: Any
    keys: Sequence[int] = ()
    sent: int | None = None


class Communicator(Protocol):
    """Makes the collectives of one program, the same ones in all processes, in the same order."""

    @property
    def num_replicas(self) -> int:
        """The number of replicas in all processes."""

    @property
    def local_size(self) -> int:
        """The number of replicas in this process."""

    @property
    def bucket_bytes(self) -> int:
        """The most bytes that are summed together."""

    @property
    def alone_bytes(self) -> int:
        """The least tensor that is summed alone."""

    @property
    def keeps_partials(self) -> bool:
        """Whether partials stay such wherever they can, as code of the replicas' own wants them."""

    @property
    def partials_by_rows(self) -> bool:
        """Whether a replica's term of what is replicated is its share by its rows of the batch.

        Then the terms of some replicas alone make the value of a batch of their rows, times the
        share that these rows have of all.
        """

    def sum(self, specs: Sequence[tf.TensorSpec], compared: Sequence[str] = ()) -> Collective:
        """Takes partials, and gives their sums over the replicas: the same bits on all of them.

        Args:
          specs: The partials.
          compared: The last one's sum is a matrix with a row for each process. It fails unless all
            rows are alike: by these names of the columns, the first that differs.
        """

    def gather(self, spec: tf.TensorSpec) -> Collective:
        """Takes rows of any dtype and the number of each replica's, and gives all, in their order.

        Args:
          spec: The rows; their number is unknown. An int32 vector with the number of the rows of
            each replica is the second argument.
        """

    def by_replicas(
        self,
        function: Callable[..., Sequence[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        beside: bool = False,
    ) -> Collective:
        """Runs a function as each replica, given its tensors; it exchanges what it will.

        Gives what the function does, and then a boolean scalar, which says nothing.

        Args:
          function: The function.
          specs: What it is given.
          beside: Whether what it exchanges runs beside all other collectives, in no order with
            them.
        """

    def sum_parts(self, dtype: tf.DType, shardings: Sequence[Sharding]) -> Collective:
        """Takes partials of variables that are sharded, and gives the replica's parts of the sums.

        Args:
          dtype: The dtype of all.
          shardings: The sharding of each.
        """

    def gather_parts(self, dtype: tf.DType, shardings: Sequence[Sharding]) -> Collective:
        """Takes the replica's parts of variables that are sharded, and gives the wholes.

        Args:
          dtype: The dtype of all.
          shardings: The sharding of each.
        """

    def from_first(self, specs: Sequence[tf.TensorSpec]) -> Collective:
        """Takes tensors of any dtype and gives the first replica's on all of them."""
