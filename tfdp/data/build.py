"""The function `tfdp.data.pipeline`, which makes a pipeline of a source and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tfdp.data.pipeline_options import PipelineOptions
from tfdp.data.pipelines import Pipeline
from tfdp.data.sources.as_source import as_source


def pipeline(
    source: Any,
    global_batch_size: int,
    *,
    seed: int,
    split: Any = None,
    shuffle: bool = True,
    map_fn: Callable[..., Any] | None = None,
    drop_remainder: bool = False,
    cache: bool = False,
    prefetch: int | Literal["auto"] = "auto",
    memory_bytes: int | None = None,
    shuffle_buffer: int = 10_000,
) -> Pipeline:
    """Makes global batches of a source, for `fit`, `evaluate`, `predict` and loops of your own.

    First make a strategy of tfdp, on one device too: otherwise Keras' `fit`, `evaluate` and
    `predict` do not know pipelines, and raise RuntimeError.

    The t-th batch of an epoch holds the same examples in the same order for any number of replicas
    and processes; each batch is sharded as evenly as possible. Every example comes once an epoch,
    in an order that is a pure function of (seed, epoch).

    Args:
      source: Arrays and nests of them (`numpy.memmap` too), a `tf.data.Dataset` of single examples,
        a TensorFlow Datasets builder or name (with `split`) or data source, paths of TFRecord or
        ArrayRecord files, a directory of images by class, or an object of `tfdp.data.sources`.
      global_batch_size: The number of examples of a batch, all replicas together.
      seed: The seed of order and augmentation, at least 0.
      split: The split of a data set of TensorFlow Datasets.
      shuffle: Whether each epoch has a new order of all examples; a stream (a `tf.data.Dataset`) is
        shuffled as far as `shuffle_buffer` reaches. False: the source's order.
      map_fn: A function of one example, called as `Dataset.map` calls it: in a graph, in parallel.
        A parameter `seed` without a default receives an int64 tensor of shape (2,), another one for
        each example and epoch and the same for any number of replicas: give it to
        `tf.image.stateless_*`. The function must return tensors, of one shape for all examples.
      drop_remainder: Whether to leave out the last batch of an epoch if it is short.
      cache: Whether to keep the examples, before `map_fn`, in memory from the first reading on.
      prefetch: The number of batches that are ready beforehand; "auto": tf.data chooses it.
      memory_bytes: The most bytes that batches in the making and prefetched ones may take in a
        process, half each, though at least one of each; also the most for `cache` and for the
        buffer of `shuffle`. Where the shapes of examples vary, and for strings, tf.data's own
        budget limits them instead. None: tf.data decides.
      shuffle_buffer: The number of examples in the buffer that shuffles a stream.

    Returns:
      The pipeline, a `tf.data.Dataset`.

    Raises:
      ValueError: An option or the source is not possible, or `global_batch_size` is more than all
        examples and `drop_remainder` is set.

    Cost: an epoch's order takes 4 bytes an example, and 8 for the examples of the process' own
    replicas. From a source with random access each process reads its own replicas' examples; each
    process reads a whole stream.

    >>> import numpy as np, tfdp
    >>> batches = tfdp.data.pipeline(np.arange(5), 2, seed=1)
    >>> for epoch in range(2):
    ...     print([batch.numpy().tolist() for batch in batches])
    [[4, 1], [3, 2], [0]]
    [[2, 4], [3, 1], [0]]
    """
    options = PipelineOptions(
        global_batch_size=global_batch_size,
        seed=seed,
        shuffle=shuffle,
        map_fn=map_fn,
        drop_remainder=drop_remainder,
        cache=cache,
        prefetch=prefetch,
        memory_bytes=memory_bytes,
        shuffle_buffer=shuffle_buffer,
    )
    return Pipeline(as_source(source, split=split), options)
