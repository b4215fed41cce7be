"""Datasets of shares with random access by index: read, mapped and batched by tf.data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.sharding import largest_share
from tfdp.data import epoch_plan
from tfdp.data.epoch_plan import epoch_key, epoch_order
from tfdp.data.mapping import ExampleFunction, example_function, with_one_shape
from tfdp.data.pipeline_options import PipelineOptions
from tfdp.data.sources.abstract import AbstractIndexedSource

# Returns the epoch and the position in it where an iterator begins, asked when it starts.
Begin = Callable[[], tuple[int, int]]


def each_epoch(
    begin: Begin,
    endless: bool,
    batches_of: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
    has_nothing_after: Callable[[int], bool] | None = None,
) -> tf.data.Dataset:
    """Returns the dataset of the rest of the epoch where an iterator begins, and of later epochs.

    Args:
      begin: Returns where an iterator begins.
      endless: Whether later epochs follow.
      batches_of: Makes the batches, called with (epoch, position), int64 scalars.
      has_nothing_after: Returns whether the rest of the epoch was empty, asked when it has been
        read; if so, the next epoch follows. None: `begin` never returns the end of an epoch.
    """

    def ask() -> tuple[np.int64, np.int64]:
        epoch, position = begin()
        return np.int64(epoch), np.int64(position)

    def first() -> list[tf.Tensor]:
        return [tf.reshape(number, []) for number in tf.numpy_function(ask, [], [tf.int64] * 2)]

    def advance(before: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        place = tf.cond(turn == 0, first, lambda: [before + 1, tf.constant(0, tf.int64)])
        return place[0], tuple(place)

    def is_empty(position: np.ndarray) -> np.bool_:
        assert has_nothing_after is not None
        return np.bool_(has_nothing_after(int(position)))

    def rest(epoch: tf.Tensor, position: tf.Tensor) -> tf.data.Dataset:
        batches = batches_of(epoch, position)
        if has_nothing_after is None:
            return batches
        following = tf.data.Dataset.range(1).filter(
            lambda _: tf.reshape(tf.numpy_function(is_empty, [position], tf.bool), [])
        )
        return batches.concatenate(
            following.flat_map(lambda _: batches_of(epoch + 1, tf.constant(0, tf.int64)))
        )

    if not endless:
        # Each function costs the start of an iterator some milliseconds: here is only one.
        return tf.data.Dataset.range(1).flat_map(lambda _: rest(*first()))
    return tf.data.Dataset.counter().scan(tf.constant(0, tf.int64), advance).flat_map(batches_of)


def indexed_shards(
    source: AbstractIndexedSource,
    options: PipelineOptions,
    begin: Begin,
    num_replicas: int,
    ranks: range,
    endless: bool,
    parallel_calls: int = tf.data.AUTOTUNE,
) -> tf.data.Dataset:
    """Returns the shares of `ranks`, batch by batch and rank by rank, of one epoch or all to come.

    For several replicas each share comes with its place in the batch, as `epoch_plan.ShardPlan` has
    it, and an empty share holds a padding row, an example of its batch.

    1. When an iterator reaches an epoch, the epoch's order is drawn and sharded into rows of
       indices (`epoch_plan.plan_epoch`).
    2. Rows are read in parallel; or examples, if each is decoded by itself.
    3. `map_fn` runs in parallel on single examples, which are then batched.
    4. The examples that only fill a row are cut off.

    Only step 1 is in the `flat_map` over epochs, because tf.data runs functions inside of one at
    half the speed.

    Args:
      source: The source of the examples.
      options: The pipeline's options.
      begin: Returns where an iterator begins.
      num_replicas: The number of replicas in all processes.
      ranks: The ranks whose shares are wanted.
      endless: Whether later epochs follow.
      parallel_calls: The number of rows that are read, and of examples that are mapped, at once.
    """
    length = len(source)
    batch_size = min(options.global_batch_size, length)
    width = largest_share(batch_size, num_replicas)
    # TensorFlow keeps Python functions as long as the process lives. `plan_epoch` therefore holds
    # numbers, and not `options`, whose `map_fn` may hold anything.
    seed, shuffle, drop_remainder = options.seed, options.shuffle, options.drop_remainder
    is_full = drop_remainder and batch_size % num_replicas == 0

    def plan_epoch(
        epoch: np.ndarray, position: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.int64]:
        order = epoch_order(length, seed, int(epoch), shuffle)[int(position) :]
        shares = epoch_plan.plan_epoch(order, batch_size, drop_remainder, num_replicas, ranks)
        return shares.rows.astype(np.int64), shares.places, np.int64(epoch_key(seed, int(epoch)))

    def epoch_rows(epoch: tf.Tensor, position: tf.Tensor) -> tf.data.Dataset:
        rows, places, key = tf.numpy_function(plan_epoch, [epoch, position], [tf.int64] * 3)
        rows.set_shape([None, width])
        places.set_shape([None, 4])
        keys = tf.fill(tf.shape(places)[:1], tf.reshape(key, []))
        return tf.data.Dataset.from_tensor_slices((rows, places, keys))

    rows = each_epoch(begin, endless, epoch_rows)
    if source.vectorized and options.map_fn is None:

        def read(row: tf.Tensor, place: tf.Tensor, key: tf.Tensor) -> Any:
            share = source.rows(row if is_full else _filled(row, place))
            return share if num_replicas == 1 else (share, place)

        return _parallel(rows, read, parallel_calls)
    function = _checked_function(source, options)
    if num_replicas == 1 and not endless:
        # The last batch is what is left of the epoch, so nothing need fill its row.
        rows = rows.map(lambda row, place, key: (_filled(row, place), place, key))
        examples = _mapped(source, rows, function, parallel_calls, with_numbers=False)
        return examples.batch(width, drop_remainder)
    mapped = _mapped(source, rows, function, parallel_calls, with_numbers=True)
    shares = mapped.batch(width, drop_remainder=True)

    def with_place(numbers: tf.Tensor, share: Any) -> Any:
        place = numbers[0, 2:]
        if not is_full:
            share = tf.nest.map_structure(lambda leaf: _filled(leaf, place), share)
        return share if num_replicas == 1 else (share, place)

    return shares.map(with_place)


def _filled(rows: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """Returns the rows that belong to the share; one row, a padding row, if it has none."""
    return rows[: tf.maximum(place[1], 1)]


def _mapped(
    source: AbstractIndexedSource,
    rows: tf.data.Dataset,
    function: ExampleFunction,
    parallel_calls: int,
    with_numbers: bool,
) -> tf.data.Dataset:
    """Returns the mapped examples of all rows; `with_numbers` as (`_numbers`, example)."""

    def map_one(numbers: tf.Tensor, *example: Any) -> Any:
        index, key, *_ = tf.unstack(numbers)  # one op
        read = example[0] if example else source.row(index)
        mapped = function(index, key, read)
        return (numbers, mapped) if with_numbers else mapped

    if source.vectorized:
        rows = _parallel(
            rows,
            lambda row, place, key: (_numbers(row, place, key), source.rows(row)),
            parallel_calls,
        )
    else:
        rows = rows.map(_numbers)
    return _parallel(rows.unbatch(), map_one, parallel_calls)


def _numbers(row: tf.Tensor, place: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Returns index, epoch's key and share's place for each index of a row, shape (width, 6).

    They are one tensor, since each tensor costs tf.data a microsecond an example.
    """
    same = tf.concat([[key], place], 0)
    return tf.concat([row[:, None], tf.tile(same[None], [tf.shape(row)[0], 1])], 1)


def _checked_function(source: AbstractIndexedSource, options: PipelineOptions) -> ExampleFunction:
    function = example_function(options.map_fn)
    if options.map_fn is None:
        return function
    first = tf.data.Dataset.range(1).map(lambda index: (index, source.row(index)))
    return with_one_shape(function, first)


def _parallel(
    dataset: tf.data.Dataset,
    function: Callable[..., Any],
    parallel_calls: int,
) -> tf.data.Dataset:
    return dataset.map(function, num_parallel_calls=parallel_calls, deterministic=True)
