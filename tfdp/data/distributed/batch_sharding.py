"""Global batches of tf.data: their declared size, and the replicas' shards of them."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.base.sharding import share_place
from tfdp.base.warn_once import warn_once
from tfdp.communication.replicas import (
    BatchShard,
    KnownLengths,
    batch_fingerprints,
    has_rows,
    num_lengths,
    place_and_rows,
    rows_of,
)
from tfdp.data.distributed._tensorflow import compute_batch_size, multi_device_iterator_ops


def warn_if_small(size: int, num_replicas: int) -> None:
    """Warns once if a batch of `size` examples, where known, leaves replicas without work."""
    if 0 < size < num_replicas:
        warn_once(
            "A batch of %d examples leaves %d of %d replicas without work in each step. Use a "
            "batch size of at least %d, a multiple of it where you can, or fewer devices.",
            *(size, num_replicas - size, num_replicas, num_replicas),
        )


def declared_size(dataset: Any) -> int:
    """Returns the number of examples of each batch but a short last; -1 if it is not declared."""
    if not isinstance(dataset, tf.data.Dataset):
        return -1
    if 0 in map(_rank, tf.nest.flatten(dataset.element_spec)):
        return -1
    return int(compute_batch_size(dataset))


def divide_dataset(
    dataset: Any, num_replicas: int, ranks: range | None = None, with_fingerprints: bool = False
) -> tf.data.Dataset | None:
    """Shards each global batch of `dataset` into the shares of `num_replicas`, in order.

    Each tensor is sharded by its own number of rows. One that has no axis to shard along goes to
    every replica. A share without examples holds a padding row, the batch's first row. TensorFlow's
    own rebatching would fill such a share from the next batch.

    Args:
      dataset: A dataset of global batches.
      num_replicas: The number of shares that each batch is sharded into.
      ranks: The ranks whose shares become elements; None: all.
      with_fingerprints: Whether those of the batch's leaves follow in `BatchShard.place`.

    Returns:
      The dataset of the parts of `BatchShard`s: a share, its place, and what is known of the
      lengths of its tensors where they may differ. None where the elements are no batches: then
      each replica gets whole elements.
    """
    if num_replicas == 1 or not isinstance(dataset, tf.data.Dataset):
        return None
    specs = tf.nest.flatten(dataset.element_spec)
    if not any(map(has_rows, specs)):
        return None
    ranks = range(num_replicas) if ranks is None else ranks
    known = _known_lengths([spec for spec in specs if has_rows(spec)])

    def fingerprints_of(batch: tuple[Any, ...]) -> tf.Tensor | None:
        return batch_fingerprints.of_leaves(batch) if with_fingerprints else None

    def one_share(batch: tuple[Any, ...], found: tf.Tensor | None, rank: tf.Tensor) -> Any:
        places, shares = [], []
        for leaf in tf.nest.flatten(batch):
            if not has_rows(leaf):
                shares.append(leaf)
                continue
            place, start, end = place_and_rows(rows_of(leaf), num_replicas, rank)
            places.append(place)
            shares.append(_with_static_rows(_rows(leaf, start, end), leaf, num_replicas))
        share = tf.nest.pack_sequence_as(dataset.element_spec, shares)
        lengths = [] if known is None else [tf.stack([place[3] for place in places])]
        place = tf.concat([places[0], *lengths, *([] if found is None else [found])], 0)
        return (share, place) if known is None else (share, place, known)

    # There is nothing to convert, and to look for it takes longer than to trace.
    @tf.autograph.experimental.do_not_convert
    def only_share(*batch: Any) -> Any:
        # A rank that tracing knew would give every share a fixed number of rows: a padding row,
        # too.
        rank = tf.raw_ops.PlaceholderWithDefault(input=tf.constant(ranks.start, tf.int64), shape=[])
        return one_share(batch, fingerprints_of(batch), rank)

    @tf.autograph.experimental.do_not_convert
    def shards(*batch: Any) -> tf.data.Dataset:
        return tf.data.Dataset.range(ranks.start, ranks.stop).map(
            tf.autograph.experimental.do_not_convert(
                functools.partial(one_share, batch, fingerprints_of(batch))
            )
        )

    if len(ranks) == 1:
        # A dataset for each batch would take several times as long as the sharding.
        return dataset.map(only_share)
    divided = dataset.flat_map(shards)
    cardinality = dataset.cardinality()
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return divided
    if cardinality != tf.data.INFINITE_CARDINALITY:
        cardinality *= len(ranks)
    return divided.apply(tf.data.experimental.assert_cardinality(cardinality))


def _known_lengths(leaves: Sequence[Any]) -> KnownLengths | None:
    """Returns what tracing knows of whole leaves' lengths; None if they are known to be one."""
    known = [None if leaf.shape.rank is None else leaf.shape[0] for leaf in leaves]
    if len(leaves) == 1 or (None not in known and len(set(known)) == 1):
        return None
    return KnownLengths(tuple(-1 if length is None else length for length in known))


def rounds(elements: int, num_replicas: int) -> int:
    """Returns how often replicas in turn get elements; keeps tf.data's own negative numbers.

    >>> rounds(5, 2), rounds(tf.data.UNKNOWN_CARDINALITY, 2)
    (3, -2)
    """
    return elements if elements < 0 else -(-elements // num_replicas)


def without_autotuning(dataset: Any) -> Any:
    """Returns `dataset` with a fixed number of parallel calls where it asks for AUTOTUNE.

    TensorFlow's iterator over several devices, when it is collected, waits until its autotuning
    thread wakes up, which may take a minute. `fit` would stand still after an epoch, and in a
    cluster all ranks with it. A dataset that sets `options.autotune.enabled` keeps its setting.
    """
    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@hook(multi_device_iterator_ops, "_create_device_dataset")
def create_device_dataset(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Turns tf.data's autotuning off in the iterators that TensorFlow makes for each device.

    When an iterator is collected, it wakes its autotuning thread before it marks itself as
    cancelled. If the thread falls asleep again in between, the collector waits for it for up to a
    minute, and `fit` stands still between epochs. The iterators on the devices only fetch into a
    buffer of fixed size, so they have nothing to tune; and since their cancelling is slow, the race
    is lost often. While the hooks are in place, a stock strategy's iterators gain as much.
    """
    return without_autotuning(original(*args, **kwargs))


def split(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Shards one global batch into the replicas' shares, in order.

    Args:
      batch: A nest of arrays or tensors with the examples along axis 0; None stays None.
      strategy: The strategy whose replicas get the shares.

    Returns:
      The nest with a `tf.distribute.DistributedValues` in place of each tensor.
    """
    num_replicas = strategy.extended.num_replicas

    def shard(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            leaf = tf.convert_to_tensor(leaf)
        if num_replicas == 1:
            return leaf
        size = int(rows_of(leaf))

        def of_replica(context: Any) -> Any:
            _, count, start, _ = share_place(size, num_replicas, context.replica_id_in_sync_group)
            return _rows(leaf, start, start + count)

        return strategy.experimental_distribute_values_from_function(of_replica)

    return tf.nest.map_structure(shard, batch)


def are_even(share_spec: Any) -> bool:
    """Returns whether every replica surely has examples, by the spec of a share or of all shares.

    A share's number of rows is declared only where the batch divides evenly.
    """
    specs = [
        spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
        for spec in tf.nest.flatten(share_spec)
    ]
    sharded = [spec for spec in specs if has_rows(spec)]
    return bool(sharded) and all(
        spec.shape.rank is not None and spec.shape[0] is not None for spec in sharded
    )


def of_each_replica(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns what a function gives for a value; of a spec of all replicas for each one's."""
    if hasattr(value, "_value_specs"):
        return type(value)(*map(function, value._value_specs))
    return function(value)


def num_rows(element: Any) -> tf.Tensor:
    """Returns the number of examples of a batch, or a share, as int64."""
    return rows_of(next(leaf for leaf in tf.nest.flatten(element) if has_rows(leaf)))


def num_other_axes(leaf: Any) -> int:
    """Returns the number of a leaf's axes but the first, in whose sizes all its rows are alike."""
    is_alike = has_rows(leaf) and not isinstance(leaf, (tf.RaggedTensor, tf.RaggedTensorSpec))
    return (leaf.shape.rank or 1) - 1 if is_alike else 0


def other_sizes(leaf: Any) -> tf.Tensor:
    """Returns the sizes of the axes that `num_other_axes` counts, int64."""
    if not num_other_axes(leaf):
        return tf.zeros([0], tf.int64)
    is_sparse = isinstance(leaf, tf.SparseTensor)
    return (leaf.dense_shape if is_sparse else tf.shape(leaf, tf.int64))[1:]


def one_row(spec: Any, sizes: tf.Tensor) -> Any:
    """Makes a row of zeros with `spec`, empty if ragged, for where there is no example at all.

    Args:
      spec: The specification of a leaf.
      sizes: The sizes of the axes that `num_other_axes` counts, int64.
    """
    if isinstance(spec, tf.RaggedTensorSpec):
        flat = tf.zeros(
            [0, *(size or 1 for size in spec.shape[1 + spec.ragged_rank :])], spec.dtype
        )
        value: Any = tf.RaggedTensor.from_row_splits(
            flat, tf.zeros([2 if spec.ragged_rank == 1 else 1], spec.row_splits_dtype)
        )
        for depth in range(1, spec.ragged_rank):
            last = depth == spec.ragged_rank - 1
            value = tf.RaggedTensor.from_row_splits(
                value, tf.zeros([2 if last else 1], spec.row_splits_dtype)
            )
        return value
    if not spec.shape.rank:
        return tf.zeros([], spec.dtype)
    row = tf.zeros(tf.concat([[1], sizes], 0), spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(row)
    return tf.ensure_shape(row, [1, *spec.shape[1:]])


def first_rows(leaf: Any, number: tf.Tensor) -> Any:
    """Returns the first `number` rows of a tensor that is sharded, and others whole."""
    return _rows(leaf, tf.zeros_like(number), number) if has_rows(leaf) else leaf


def without_padding_rows(share: BatchShard, num_replicas: int) -> Any:
    """Returns the rows of a share that are its replica's examples."""
    leaves = tf.nest.flatten(share.rows)
    own: Iterator[tf.Tensor] = itertools.repeat(share.place[1])
    if count := num_lengths(share.known):
        lengths = share.place[4 : 4 + count]
        own = iter(tf.unstack(share_place(lengths, num_replicas, share.place[0])[1]))
    found = [first_rows(leaf, next(own)) if has_rows(leaf) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(share.rows, found)


def _rank(leaf: Any) -> int | None:
    """Returns the rank: None if unknown, -1 of a value without one, such as an optional."""
    shape = getattr(leaf, "shape", None)
    return -1 if shape is None else shape.rank


def _with_static_rows(share: Any, batch: Any, num_replicas: int) -> Any:
    rows = None if batch.shape.rank is None else batch.shape[0]
    if not rows or rows % num_replicas:
        return share
    if isinstance(share, tf.RaggedTensor):
        share.row_splits.set_shape([rows // num_replicas + 1])
    else:
        share.set_shape([rows // num_replicas, *share.shape[1:]])
    return share


def _rows(leaf: Any, start: int, end: int) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        size = tf.concat([[end - start], leaf.dense_shape[1:]], axis=0)
        begin = tf.concat([[start], tf.zeros_like(leaf.dense_shape[1:])], axis=0)
        rows = tf.sparse.slice(leaf, tf.cast(begin, tf.int64), tf.cast(size, tf.int64))
        rows.set_shape([None, *leaf.shape[1:]])
        return rows
    return leaf[start:end]
