"""The dataset of some replicas' shares: read, mapped, batched and prefetched."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.sharding import largest_share
from tfdp.data.indexed_shards import indexed_shards
from tfdp.data.pipeline_options import PipelineOptions, batches_within, empty, example_bytes
from tfdp.data.progress import PipelineProgress, View
from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractSource, AbstractStreamSource
from tfdp.data.stream_shards import stream_shards


def make_shards(
    source: AbstractSource,
    options: PipelineOptions,
    progress: PipelineProgress,
    view: View,
    num_replicas: int,
    ranks: range,
) -> tf.data.Dataset:
    """Returns the shares, batch by batch and rank by rank; for several replicas with their places.

    Args:
      source: The source of the examples.
      options: The pipeline's options.
      progress: Tells where an iterator begins, and is told the length of a stream.
      view: The way the pipeline is looked at.
      num_replicas: The number of replicas in all processes.
      ranks: The ranks whose shares are wanted.
    """
    # TensorFlow keeps Python functions as long as the process lives: `begin` and `learn` therefore
    # hold no data.
    from_start, described = view.from_start, source.describe()

    def begin() -> tuple[int, int]:
        return (0, 0) if from_start else progress.place

    def learn(length: int) -> None:
        if length == 0:
            raise empty(described)
        progress.read_to_end(length)

    width = largest_share(options.global_batch_size, num_replicas)
    if isinstance(source, AbstractIndexedSource):
        parallel_calls, _ = _limits(options, example_bytes(source.element_spec), width)
        shares = indexed_shards(
            source, options, begin, num_replicas, ranks, view.endless, parallel_calls
        )
    else:
        assert isinstance(source, AbstractStreamSource)
        shares = stream_shards(
            source,
            options,
            begin,
            learn if progress.length is None else None,
            progress.has_nothing_after,
            num_replicas,
            ranks,
            view.endless,
        )
    share_spec = shares.element_spec if num_replicas == 1 else shares.element_spec[0]
    mapped = tf.nest.map_structure(_of_example, share_spec)
    if view.share_fn is not None:
        shares = shares.map(
            view.share_fn if num_replicas == 1 else _of_share(view.share_fn),
            tf.data.AUTOTUNE,
            deterministic=True,
        )
    if options.prefetch != "auto":
        ready = options.prefetch * len(ranks)
    else:
        _, ready = _limits(options, example_bytes(mapped), width)
    return tuned(shares if ready == 0 else shares.prefetch(ready), options)


def _of_share(share_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Applies `share_fn` to a share that comes with its place."""

    def function(share: Any, place: tf.Tensor) -> Any:
        return (share_fn(*share) if isinstance(share, tuple) else share_fn(share)), place

    return function


def without_padding_rows(shards: tf.data.Dataset) -> tf.data.Dataset:
    """Removes the padding rows from shares that come with their places, and the places."""
    return shards.map(
        lambda share, place: tf.nest.map_structure(lambda leaf: leaf[: place[1]], share)
    )


def tuned(dataset: tf.data.Dataset, options: PipelineOptions) -> tf.data.Dataset:
    """Returns `dataset` with tf.data's options as the pipeline needs them."""
    chosen = tf.data.Options()
    # A prefetch that tf.data adds after the last step would count batches before they are taken.
    chosen.experimental_optimization.inject_prefetch = False
    # This would run the small steps between batches in parallel, each with a buffer of its own.
    chosen.experimental_optimization.map_parallelization = False
    chosen.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if options.memory_bytes is not None:
        chosen.autotune.ram_budget = options.memory_bytes
    return dataset.with_options(chosen)


def _limits(options: PipelineOptions, size: int | None, width: int) -> tuple[int, int]:
    """Returns the most shares that may be made at once, and the most that may wait."""
    if options.memory_bytes is None or size is None:
        return tf.data.AUTOTUNE, tf.data.AUTOTUNE
    return batches_within(options.memory_bytes, size * width)


def _of_example(spec: Any) -> Any:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec(spec.shape[1:], spec.dtype)
    return spec
