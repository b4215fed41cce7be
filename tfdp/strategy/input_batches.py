"""Global batches: what they declare, and how one is cut into the replicas' shares."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp.strategy._tensorflow import compute_batch_size


def check_declared_size(dataset: Any, num_replicas: int) -> None:
    """Raises ValueError if `dataset` declares batches of fewer examples than there are replicas."""
    if not isinstance(dataset, tf.data.Dataset):
        return
    size = int(compute_batch_size(dataset))
    if 0 < size < num_replicas:
        raise ValueError(
            "A global batch must hold an example for each replica, but the dataset's batch size is "
            f"{size} and there are {num_replicas} replicas. Use a batch size of at least "
            f"{num_replicas}, a multiple of it where you can, or fewer devices."
        )


def shares(size: int, num_replicas: int) -> list[int]:
    """Numbers of examples, as even as can be, the first replicas taking the rest.

    >>> shares(6, 4)
    [2, 2, 1, 1]
    """
    least, rest = divmod(size, num_replicas)
    return [least + (rank < rest) for rank in range(num_replicas)]


def split(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Cuts one global batch into the replicas' shares, in order.

    Args:
      batch: A nest of arrays or tensors with the examples along axis 0; None stays None.
      strategy: Whose replicas get them.

    Returns:
      The nest with a `tf.distribute.DistributedValues` in place of each tensor.
    """
    num_replicas = strategy.num_replicas_in_sync
    is_none = [leaf is None for leaf in tf.nest.flatten(batch)]
    tensors = [
        None if none else _tensor(leaf)
        for none, leaf in zip(is_none, tf.nest.flatten(batch), strict=True)
    ]
    if num_replicas == 1:
        return tf.nest.pack_sequence_as(batch, tensors)

    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        size = int(leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0])
        ends = [sum(shares(size, num_replicas)[: rank + 1]) for rank in range(num_replicas)]
        starts = [0, *ends[:-1]]
        return strategy.experimental_distribute_values_from_function(
            lambda context: _rows(
                leaf,
                starts[context.replica_id_in_sync_group],
                ends[context.replica_id_in_sync_group],
            )
        )

    return tf.nest.pack_sequence_as(batch, [cut(leaf) for leaf in tensors])


def _tensor(leaf: Any) -> Any:
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        return leaf
    return tf.convert_to_tensor(leaf)


def _rows(leaf: Any, start: int, end: int) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        size = tf.concat([[end - start], leaf.dense_shape[1:]], axis=0)
        begin = tf.concat([[start], tf.zeros_like(leaf.dense_shape[1:])], axis=0)
        return tf.sparse.slice(leaf, tf.cast(begin, tf.int64), tf.cast(size, tf.int64))
    return leaf[start:end]
