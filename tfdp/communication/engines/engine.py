"""The definition of an engine: what moves tensors between ranks while a graph runs."""

import abc
from collections.abc import Sequence

import tensorflow as tf

from tfdp.topology import Exchange, Schedule


class Engine(abc.ABC):
    """The collective primitives between ranks, called in the replica functions of a graph.

    Every member of a group must call the same primitives in the same order. Primitives that may
    run at the same time are run in the order of the program, on every rank.

    Attributes:
      name: The name by which users choose the engine.
      world_size: The number of ranks.
      is_nccl: Whether NCCL moves the tensors. It sums and gathers in groups, fast. What two ranks
        send each other, and, between processes, `all_to_all`, go another way, through hosts.
    """

    name: str
    world_size: int
    is_nccl: bool = False

    @abc.abstractmethod
    def all_reduce(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Returns the sum of `tensor` over `group`: the same bits on every member.

        Sends 2(n-1)/n of the bytes of a large tensor per rank.

        Args:
          tensor: A tensor of float16/32/64, bfloat16, int32 or int64, of the same shape on every
            member.
          group: The ranks that take part, the caller's included.
        """

    @abc.abstractmethod
    def all_gather(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Concatenates the members' tensors along axis 0, in the order of ranks.

        Args:
          tensor: A tensor of rank 1 or more, of the same shape on every member.
          group: The ranks that take part, the caller's included.

        Raises:
          TypeError: The tensor holds neither numbers nor booleans.
        """

    @abc.abstractmethod
    def all_to_all(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Sends row i to member i of the group, and returns the rows that come, in their order.

        Sends (n-1)/n of the tensor's bytes per rank.

        Args:
          tensor: A tensor of a dtype that `all_reduce` takes, of the same known shape on every
            member, with a row for each member, in the order of ranks.
          group: The ranks that take part, the caller's included.
        """

    def reduce_scatter(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Returns the sum over `group` of one row each: member i gets that of rows i.

        Sends (n-1)/n of the tensor's bytes per rank.

        Args:
          tensor: As `all_to_all` takes it.
          group: The ranks that take part, the caller's included.
        """
        return tf.add_n(tf.unstack(self.all_to_all(tensor, group), len(group)))

    @abc.abstractmethod
    def exchange(
        self, schedule: Schedule, exchanges: Sequence[Exchange], tensor: tf.Tensor
    ) -> tf.Tensor:
        """Returns the caller's buffer after `exchanges`, phases of `schedule` in their order.

        Every rank must call it, also one that no transfer names.

        Args:
          schedule: Says where chunks lie.
          exchanges: Phases of it that follow each other.
          tensor: The buffer that the caller holds before them; its shape must be known.
        """

    def all_gather_rows(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Concatenates the members' rows as `all_gather` does, where their numbers differ.

        Pads each tensor to the longest, so n times the longest one's bytes arrive at each member.
        """
        if len(group) == 1:
            return tf.identity(tensor)
        counts = self.all_gather(tf.shape(tensor)[:1], group)
        return self.gather_counted(tensor, counts, group)

    def gather_counted(
        self, tensor: tf.Tensor, counts: tf.Tensor, group: tuple[int, ...]
    ) -> tf.Tensor:
        """Concatenates rows as `all_gather_rows` does, where all members know the `counts`."""
        longest = tf.maximum(tf.reduce_max(counts), 1)
        sizes = tensor.shape[1:]
        rows = tensor
        may_have_no_elements = not sizes.is_fully_defined() or 0 in sizes
        if may_have_no_elements:  # TensorFlow's collectives die of tensors without any
            rows = tf.reshape(rows, [tf.shape(rows)[0], tf.reduce_prod(tf.shape(rows)[1:])])
            rows = tf.pad(rows, [[0, 0], [0, 1]])
        padding = [[0, longest - tf.shape(rows)[0]]] + [[0, 0]] * (rows.shape.rank - 1)
        gathered = self.all_gather(tf.pad(rows, padding), group)
        found = tf.boolean_mask(gathered, tf.reshape(tf.sequence_mask(counts, longest), [-1]))
        if may_have_no_elements:
            shape = tf.concat([tf.shape(found)[:1], tf.shape(tensor)[1:]], 0)
            found = tf.ensure_shape(tf.reshape(found[:, :-1], shape), [None, *sizes])
        return found


def check_can_be_gathered(tensor: tf.Tensor) -> None:
    """Raises TypeError unless the tensor holds numbers or booleans."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise TypeError(
            "What is gathered over replicas must be numbers or booleans, but received a tensor "
            f"of {tensor.dtype.name}. Gather indices, and look the {tensor.dtype.name}s up "
            "afterwards."
        )
