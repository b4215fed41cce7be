"""`tfdp.whole_batch`, which brings the examples of all replicas together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step, current
from tfdp.keras_adapter.tracing.marks import mark_global
from tfdp.keras_adapter.training.cut import COUNTS
from tfdp.keras_adapter.variables.effects import zero_if

# The dtypes that collectives sum; tensors of other dtypes are cast to integers to be summed.
_SUMMED_AS_IT_IS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)

_NOT_OF_EXAMPLES = (
    "`tfdp.whole_batch` must be given a row for each of the replica's examples, but received more "
    "or fewer. Bring what has several of each together one by one, such as two views of the same "
    "images: `one, other = tfdp.whole_batch((one, other))`."
)


class _Place(NamedTuple):
    """The number of a replica's rows, of the rows before them, and of all rows."""

    rows: tf.Tensor
    before: tf.Tensor
    total: tf.Tensor


def whole_batch(tensors: Any) -> Any:
    """Brings the examples of all replicas together, for computations that compare examples.

    A replica has a share of the batch. The result holds all examples of the global batch, in its
    order, on every replica; on one device, or without a strategy, it is `tensors` itself. A loss
    computed from the result (in-batch negatives, the hardest negative, a statistic of the batch)
    equals one device's loss, and so do the gradients, for shares of any lengths.

    Call it in a loss or metric that `compile` is given, in the call of a layer, also for
    `add_loss`, in a `train_step`, `test_step` or `predict_step`, in branches and functions within
    these, or in a loop of your own (`strategy.run`). All replicas must call it, or none. In `fit` a
    loss may be a scalar or one value for each example of the whole batch, and counts once. In a
    loop of your own each replica has the same loss and the replicas' gradients are added up, so
    divide the loss by `num_replicas_in_sync`.

    Cost: two collectives, one forward and one backward. Each sums tensors as long as the batch, in
    which a replica fills its own rows and has zeros elsewhere. On a ring each rank sends
    `2 (N - 1) / N` times the bytes of the whole batch's tensor in each of them, and every replica
    computes for all examples what follows.

    Reference: the losses of Chen et al., "A Simple Framework for Contrastive Learning of Visual
    Representations", arXiv:2002.05709 (2020), section 2.1, whose negatives are the other examples
    of the global batch.

    Args:
      tensors: A tensor, array or variable, or a nest of them: floating point numbers, integers or
        booleans of the shape (examples, ...), with a row for each of the replica's examples. None
        stays None.

    Returns:
      Tensors of the shapes (examples of the batch, ...), of the same dtypes, in the same nest. On
      several replicas their length is not known while a step is traced.

    Raises:
      ValueError: A tensor has no axis of examples, or is symbolic: wrap the call in a layer, such
        as `keras.layers.Lambda(tfdp.whole_batch)`.
      TypeError: A tensor is ragged, sparse, complex or of strings.
      RuntimeError: The call is in code that `jit_compile=True` compiles on CPU, where XLA has no
        collective, or outside of replicas with the values of several.

    A tensor that has not as many rows as the replica has examples raises
    `tf.errors.InvalidArgumentError` when the step runs.

    Example:

    >>> import keras, numpy as np, tensorflow as tf, tfdp
    >>> def spread(y, outputs):  # of all of the batch's outputs: no mean over examples
    ...     y, outputs = tfdp.whole_batch((y, outputs))
    ...     return tf.math.reduce_std(outputs - y)
    >>> with tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"]).scope():
    ...     model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, trainable=False)])
    ...     model.compile("sgd", loss=spread)
    >>> x = np.arange(5.0)[:, np.newaxis]
    >>> loss = model.evaluate(x, model.predict(x, verbose=0) + x, batch_size=5, verbose=0)
    >>> print(f"{loss:.4f}", f"{x.std():.4f}")
    1.4142 1.4142
    """
    step = current()
    if step is not None and step.compiling and step.num_replicas > 1:
        raise RuntimeError(
            "`tfdp.whole_batch` must be called outside of what `jit_compile=True` compiles on CPU, "
            "where XLA has no collective, but a layer calls it. Call it in the loss that `compile` "
            "is given, or use jit_compile=False."
        )
    leaves = [_checked(leaf) for leaf in tf.nest.flatten(tensors)]
    kept = [index for index, leaf in enumerate(leaves) if leaf is not None]
    for index, whole in zip(kept, _of_all(step, [leaves[i] for i in kept]), strict=True):
        leaves[index] = whole
    return tf.nest.pack_sequence_as(tensors, leaves)


def _checked(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.distribute.DistributedValues) and not isinstance(leaf, tf.Variable):
        raise RuntimeError(
            "`tfdp.whole_batch` must be called in a replica, with that replica's tensors, but "
            "received the values of several outside of them. Use `strategy.gather(values, axis=0)`."
        )
    if isinstance(leaf, keras.KerasTensor):
        raise ValueError(
            "`tfdp.whole_batch` must be given tensors, but received a symbolic one, of a model "
            "that is being built. Use it as a layer: `keras.layers.Lambda(tfdp.whole_batch)`."
        )
    dtype = leaf.dtype if tf.is_tensor(leaf) else None
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) or dtype in (tf.string,):
        raise _not_numbers(type(leaf).__name__ if dtype != tf.string else "strings")
    tensor = leaf if isinstance(leaf, tf.Tensor) else tf.convert_to_tensor(leaf)
    dtype = tensor.dtype
    if not (dtype in _SUMMED_AS_IT_IS or dtype.is_integer or dtype.is_bool):
        raise _not_numbers(tensor.dtype.name)
    if tensor.shape.rank == 0:
        raise ValueError(
            "`tfdp.whole_batch` must be given tensors whose first axis is that of the examples, "
            "but received a scalar. Give it what the scalar is computed from."
        )
    return tensor


def _not_numbers(what: str) -> TypeError:
    return TypeError(
        "`tfdp.whole_batch` must be given dense tensors of numbers or booleans, but received "
        f"{what}. Make them dense, such as `x.to_tensor(shape=...)` or `tf.sparse.to_dense(x)`, "
        "and bring the parts of complex numbers together one by one."
    )


def _of_all(step: Step | None, own: list[tf.Tensor]) -> list[tf.Tensor]:
    if step is None:
        return _without_step(own)
    if step.num_replicas == 1 or not own:
        return own
    places = _asked(step, own) if step.share is None else _known(step, step.share, own)
    wholes = list(own)
    floating = [index for index, tensor in enumerate(own) if tensor.dtype.is_floating]
    exact = [index for index in range(len(own)) if index not in floating]
    for sums, indices in ((_differentiable, floating), (_summed, exact)):
        found = sums(step, [own[i] for i in indices], [places[i] for i in indices])
        for index, whole in zip(indices, found, strict=True):
            wholes[index] = mark_global(whole)
    return wholes


def _without_step(own: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the whole batch on one device, or in a replica of another strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return own
    return [context.all_gather(tensor, axis=0) for tensor in own]


def _known(step: Step, share: Share, own: list[tf.Tensor]) -> list[_Place]:
    """Returns the places of tensors in the batch from the replica's share.

    The sum of tensors as long as the batch needs the same length on all ranks, so ranks that were
    to compare their lengths at the step's end do so now.
    """
    examples, before, rows, total = tf.unstack(tf.convert_to_tensor(share.place))
    fit = tf.stack([tf.shape(tensor, tf.int64)[0] == rows for tensor in own])
    with tf.control_dependencies(step.ending.send_early(COUNTS) or []):
        zero = zero_if(tf.reduce_all(fit), _NOT_OF_EXAMPLES)
    return [_Place(examples, before + zero, total)] * len(own)


def _asked(step: Step, own: list[tf.Tensor]) -> list[_Place]:
    """Returns the places of tensors from the sizes on all replicas, in a loop of the user's own."""
    rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in own])
    (counts,) = step.sum(
        [tf.one_hot(step.replica_id, step.num_replicas, dtype=tf.int64)[:, None] * rows]
    )
    before, total = tf.reduce_sum(counts[: step.replica_id], 0), tf.reduce_sum(counts, 0)
    return [_Place(rows[i], before[i], total[i]) for i in range(len(own))]


def _differentiable(step: Step, own: list[tf.Tensor], places: list[_Place]) -> list[tf.Tensor]:
    @tf.custom_gradient
    def rows_of_all(*own: tf.Tensor) -> Any:
        def backward(*upstream: Any) -> list[tf.Tensor]:
            if step.share is not None and step.share.may_be_empty:
                # The gradients that come from a stand-in may be NaN.
                has_examples = places[0].rows > 0
                upstream = tuple(tf.where(has_examples, u, tf.zeros_like(u)) for u in upstream)
            totals = step.sum(upstream)
            return [_own_rows(*each) for each in zip(totals, own, places, strict=True)]

        return _summed(step, own, places), backward

    return list(rows_of_all(*own)) if own else []


def _summed(step: Step, own: Sequence[tf.Tensor], places: list[_Place]) -> list[tf.Tensor]:
    """Returns whole batches: sums over replicas of tensors with the own rows, and zeros else."""
    sums = step.sum([_padded(*each) for each in zip(own, places, strict=True)])
    return [tf.cast(total, tensor.dtype) for total, tensor in zip(sums, own, strict=True)]


def _padded(tensor: tf.Tensor, place: _Place) -> tf.Tensor:
    rest = tensor.shape[1:]
    if tensor.dtype not in _SUMMED_AS_IT_IS:
        tensor = tf.cast(tensor, tf.int32 if tensor.dtype.size < 4 else tf.int64)
    after = place.total - place.before - place.rows
    padded = tf.pad(tensor[: place.rows], _of_first_axis(tensor, place.before, after))
    return tf.ensure_shape(padded, [None, *rest])


def _own_rows(total: tf.Tensor, tensor: tf.Tensor, place: _Place) -> tf.Tensor:
    """Returns the replica's rows of a gradient; zeros for a stand-in."""
    kept = total[place.before : place.before + place.rows]
    missing = tf.shape(tensor, tf.int64)[0] - place.rows
    return tf.pad(kept, _of_first_axis(tensor, tf.zeros_like(missing), missing))


def _of_first_axis(tensor: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Returns the argument of `tf.pad` that adds so many rows to the first axis."""
    return tf.pad([[before, after]], [[0, tf.rank(tensor) - 1], [0, 0]])
