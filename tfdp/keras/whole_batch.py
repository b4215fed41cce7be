"""`tfdp.whole_batch`, which brings the examples of all replicas together in `strategy.run`."""

from typing import Any

import tensorflow as tf


def whole_batch(tensors: Any) -> Any:
    """Gathers the examples of all replicas, for computations that compare examples.

    In `strategy.run` a replica has a share of the batch. The result holds all examples of the
    global batch, in its order, on every replica. In `fit`, `evaluate` and `predict`, in a
    partitioned function, on one device and without a strategy the program sees the whole batch
    already, and the result is `tensors` itself.

    In a loop of your own each replica has the same loss of the whole batch and the replicas'
    gradients are added up, so divide the loss by `num_replicas_in_sync`. All replicas must call it,
    or none.

    Cost: a gather of the rows, and in the backward pass a sum of their gradients.

    Reference: the losses of Chen et al., "A Simple Framework for Contrastive Learning of Visual
    Representations", arXiv:2002.05709 (2020), section 2.1, whose negatives are the other examples
    of the global batch.

    Args:
      tensors: A dense tensor of the shape (examples, ...), with a row for each of the replica's
        examples, or a nest of them. None stays None.

    Returns:
      Tensors of the shapes (examples of the batch, ...), of the same dtypes, in the same nest.

    Raises:
      ValueError: A tensor has no axis of examples.
      RuntimeError: The call is outside of replicas with the values of several, or in `strategy.run`
        in a `tf.cond`, a loop or a `tf.function` inside of the replica function's graph.

    Example:

    >>> import tensorflow as tf, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> shares = next(iter(strategy.experimental_distribute_dataset(
    ...     tf.data.Dataset.range(3).batch(3))))
    >>> whole = tf.function(lambda: strategy.run(tfdp.whole_batch, args=(shares,)))()
    >>> [each.numpy().tolist() for each in strategy.experimental_local_results(whole)]
    [[0, 1, 2], [0, 1, 2]]
    """
    return tf.nest.map_structure(_whole, tensors)


def _whole(leaf: Any) -> Any:
    if isinstance(leaf, tf.distribute.DistributedValues) and not isinstance(leaf, tf.Variable):
        raise RuntimeError(
            "`tfdp.whole_batch` must be called in a replica, with that replica's tensors, but "
            "received the values of several outside of them. Use `strategy.gather(values, axis=0)`."
        )
    context = tf.distribute.get_replica_context()
    if leaf is None or context is None or context.num_replicas_in_sync == 1:
        return leaf
    tensor = tf.convert_to_tensor(leaf)
    if tensor.shape.rank == 0:
        raise ValueError(
            "`tfdp.whole_batch` must be given tensors whose first axis is that of the examples, "
            "but received a scalar. Give it what the scalar is computed from."
        )
    try:
        return context.all_gather(tensor, axis=0)
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise RuntimeError(
            "In `strategy.run` replicas must meet in `tfdp.whole_batch` outside of `tf.cond`, of "
            "loops and of tf.functions of their own, but it was called inside of one. Call it "
            "before, and use its result there; or train by `strategy.partitioned`, where it may be "
            "called anywhere."
        ) from error
