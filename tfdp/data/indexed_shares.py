"""The datasets of shares: random access by index, read, mapped and batched by tf.data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.data import plan
from tfdp.data.mapping import ExampleFunction, example_function, with_one_shape
from tfdp.data.options import PipelineOptions
from tfdp.data.order import epoch_key, epoch_order
from tfdp.data.sources.abstract import AbstractIndexedSource
from tfdp.shares import largest_share

# Asked when an iterator starts: the epoch, and the position in it, where it begins.
Begin = Callable[[], tuple[int, int]]


def each_epoch(
    begin: Begin,
    endless: bool,
    batches_of: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
    has_nothing_after: Callable[[int], bool] | None = None,
) -> tf.data.Dataset:
    """What an iterator gives: the rest of the epoch in which it begins, and of all to come.

    Args:
      begin: Says where an iterator begins.
      endless: Goes on with the next epochs.
      batches_of: Called with (epoch, position), int64 scalars.
      has_nothing_after: Asked when the rest of the epoch has been read, whether it was empty: then
        it is the next. None: `begin` never says the end of an epoch.
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
        # Each function takes the start of an iterator some milliseconds: here is but one.
        return tf.data.Dataset.range(1).flat_map(lambda _: rest(*first()))
    return tf.data.Dataset.counter().scan(tf.constant(0, tf.int64), advance).flat_map(batches_of)


def indexed_shares(
    source: AbstractIndexedSource,
    options: PipelineOptions,
    begin: Begin,
    num_replicas: int,
    ranks: range,
    endless: bool,
    parallel_calls: int = tf.data.AUTOTUNE,
) -> tf.data.Dataset:
    """The shares of `ranks`, batch by batch and rank by rank, of one epoch or of all to come.

    Of several replicas each comes with its place in the batch, as `plan.Shares` says it; one that
    is empty holds a stand-in, an example of its batch.

    1. When an iterator reaches an epoch: its order, and from it the rows of indices (`plan.cut`).
    2. Rows are read in parallel; or examples, where each is decoded by itself.
    3. `map_fn`, in parallel, of single examples, which then are batched.
    4. What only fills a row is cut off.

    Only step 1 is in the `flat_map` over epochs: in there tf.data runs functions at half the speed.

    Args:
      source: Of the examples.
      options: The pipeline's.
      begin: Says where an iterator begins.
      num_replicas: Of all processes.
      ranks: Whose shares are wanted.
      endless: Goes on with the next epochs.
      parallel_calls: How many rows are read, and examples mapped, at once.
    """
    length = len(source)
    batch_size = min(options.global_batch_size, length)
    width = largest_share(batch_size, num_replicas)
    # TensorFlow keeps functions of Python as long as the process lives: this one holds numbers, and
    # not `options`, whose `map_fn` may hold anything.
    seed, shuffle, drop_remainder = options.seed, options.shuffle, options.drop_remainder
    is_full = drop_remainder and batch_size % num_replicas == 0

    def plan_epoch(
        epoch: np.ndarray, position: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.int64]:
        order = epoch_order(length, seed, int(epoch), shuffle)[int(position) :]
        shares = plan.cut(order, batch_size, drop_remainder, num_replicas, ranks)
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
        # The last batch is what is left: nothing need fill its row.
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
    """Those of `rows` that are the share's; one, a stand-in, where it has none."""
    return rows[: tf.maximum(place[1], 1)]


def _mapped(
    source: AbstractIndexedSource,
    rows: tf.data.Dataset,
    function: ExampleFunction,
    parallel_calls: int,
    with_numbers: bool,
) -> tf.data.Dataset:
    """The mapped examples of all rows, one by one; each as (its `_numbers`, the example) if so."""

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
    """Index, key of the epoch and place of the share for each index of a row, shape (width, 6).

    Together, since each tensor costs tf.data a microsecond an example.
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
