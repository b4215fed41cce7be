"""Datasets of shares of a source that can only be read in order."""

import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.determinism import seconds_in_graph
from tfdp.communication.replicas import place_and_rows
from tfdp.data.epoch_plan import epoch_key
from tfdp.data.indexed_shards import Begin, each_epoch
from tfdp.data.mapping import example_function, with_one_shape
from tfdp.data.pipeline_options import PipelineOptions
from tfdp.data.sources.abstract import AbstractStreamSource


def stream_shards(
    source: AbstractStreamSource,
    options: PipelineOptions,
    begin: Begin,
    learn: Callable[[int], None] | None,
    has_nothing_after: Callable[[int], bool],
    num_replicas: int,
    ranks: range,
    endless: bool,
) -> tf.data.Dataset:
    """Returns the shares of `ranks` in a stream, as `indexed_shards` returns them.

    1. All examples are read, numbered, and shuffled through a buffer.
    2. The examples before the position are skipped, the others batched.
    3. Each batch is sharded; only the ranks' own shares go through `map_fn`.

    Args:
      source: The source of the examples.
      options: The pipeline's options.
      begin: Returns where an iterator begins.
      learn: Is told the number of examples when an epoch has been read; None: it is known.
      has_nothing_after: Returns whether a position was the epoch's end, asked when the epoch was
        read.
      num_replicas: The number of replicas in all processes.
      ranks: The ranks whose shares are wanted.
      endless: Whether later epochs follow.
    """
    examples = source.examples()
    if options.cache:
        examples = examples.cache()
    numbered = examples.enumerate()
    function = example_function(options.map_fn)
    if options.map_fn is not None:
        function = with_one_shape(function, numbered)

    # TensorFlow keeps Python functions as long as the process lives: these hold no more than this.
    seed, described = options.seed, source.describe()

    def key_of(epoch: np.ndarray) -> np.int64:
        return np.int64(epoch_key(seed, int(epoch)))

    def epoch_shares(epoch: tf.Tensor, position: tf.Tensor) -> tf.data.Dataset:
        shares = sharded_and_mapped(epoch, position)
        return _if_any(position, shares, lambda shares: _timed(shares, position, described))

    def sharded_and_mapped(epoch: tf.Tensor, position: tf.Tensor) -> tf.data.Dataset:
        key = tf.reshape(tf.numpy_function(key_of, [epoch], tf.int64), [])
        rows = numbered
        if options.shuffle:
            rows = _shuffled(rows, options.shuffle_buffer, key)
        rows = _if_any(position, rows, lambda all_rows: all_rows.skip(position))
        if learn is not None:
            rows = _counted(rows, position, learn)
        if num_replicas == 1:
            mapped = rows.map(
                lambda index, example: function(index, key, example),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            return mapped.batch(options.global_batch_size, options.drop_remainder)
        batches = rows.batch(options.global_batch_size, options.drop_remainder)
        shares = _shard(batches, num_replicas, ranks)
        if options.map_fn is None:
            return shares.map(lambda _, share, place: (share, place))
        return shares.map(
            lambda indices, share, place: (_map_share(function, indices, key, share), place),
            num_parallel_calls=2,  # each call is parallel within
            deterministic=True,
        )

    unknown = None if learn is None else has_nothing_after
    return each_epoch(begin, endless, epoch_shares, unknown)


def _if_any(
    position: tf.Tensor,
    dataset: tf.data.Dataset,
    change: Callable[[tf.data.Dataset], tf.data.Dataset],
) -> tf.data.Dataset:
    """Changes the dataset if `position` is not 0: TensorFlow 2.21 crashes at `skip` of 0."""
    variant = tf.cond(
        position > 0,
        lambda: tf.data.experimental.to_variant(change(dataset)),
        lambda: tf.data.experimental.to_variant(dataset),
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _timed(shares: tf.data.Dataset, position: tf.Tensor, described: str) -> tf.data.Dataset:
    """Returns `shares`; when the first is there, the log says how long that took."""
    began = seconds_in_graph()

    def say(position: np.ndarray, seconds: np.ndarray) -> np.bool_:
        logging.getLogger("tfdp").info(
            "Went on after the first %d examples of %s, which can only be read in order: that "
            "took %.1f s.",
            position,
            described,
            seconds,
        )
        return np.bool_(False)

    def pass_on(is_first: tf.Tensor, share: Any) -> tuple[tf.Tensor, Any]:
        def first() -> tf.Tensor:
            seconds = seconds_in_graph() - began
            return tf.reshape(tf.numpy_function(say, [position, seconds], tf.bool), [])

        return tf.cond(is_first, first, lambda: tf.constant(False)), share

    return shares.scan(tf.constant(True), pass_on)


def _shuffled(dataset: tf.data.Dataset, buffer: int, key: tf.Tensor) -> tf.data.Dataset:
    """Shuffles by `key` alone: the seed of `tf.random.set_seed` has no part in it."""
    graph = tf.compat.v1.get_default_graph()
    global_seed, graph.seed = graph.seed, 1
    try:
        return dataset.shuffle(buffer, seed=key, reshuffle_each_iteration=False)
    finally:
        graph.seed = global_seed


def _counted(
    dataset: tf.data.Dataset, position: tf.Tensor, learn: Callable[[int], None]
) -> tf.data.Dataset:
    """Returns `dataset`; after its last element `learn` is told `position` plus their number."""

    def told(count: np.ndarray) -> np.bool_:
        learn(int(count))
        return np.bool_(False)

    def tell(count: tf.Tensor) -> tf.Tensor:
        said = tf.numpy_function(told, [count], tf.bool)
        said.set_shape([])
        return said

    optional = tf.data.experimental.Optional
    elements = dataset.map(lambda *element: optional.from_value(element))
    end = tf.data.Dataset.range(1).map(lambda _: optional.empty(dataset.element_spec))

    def count(total: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        total += tf.cast(element.has_value(), tf.int64)
        return total, (total, element)

    counted = elements.concatenate(end).scan(position, count)
    kept = counted.filter(
        lambda total, element: tf.cond(
            element.has_value(), lambda: tf.constant(True), lambda: tell(total)
        )
    )
    return kept.map(lambda _, element: element.get_value())


def _shard(batches: tf.data.Dataset, num_replicas: int, ranks: range) -> tf.data.Dataset:
    """Shards each batch into the shares of `ranks`, in order, with their places."""

    def shares(*batch: Any) -> tf.data.Dataset:
        size = tf.shape(batch[0], tf.int64)[0]

        def share(rank: tf.Tensor) -> Any:
            place, start, end = place_and_rows(size, num_replicas, rank)
            return *tf.nest.map_structure(lambda leaf: leaf[start:end], batch), place

        return tf.data.Dataset.range(ranks.start, ranks.stop).map(share)

    return batches.flat_map(shares)


def _map_share(function: Any, indices: tf.Tensor, key: tf.Tensor, share: Any) -> Any:
    """Applies `function` to each row of a share, in parallel, and batches the results."""
    size = tf.shape(indices, tf.int64)[0]
    mapped = tf.data.Dataset.from_tensor_slices((indices, share)).map(
        lambda index, example: function(index, key, example),
        num_parallel_calls=os.cpu_count(),
        deterministic=True,
    )
    return mapped.batch(size).get_single_element()
