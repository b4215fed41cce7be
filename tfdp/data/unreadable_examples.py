"""The search for an example that cannot be read, where TensorFlow's error does not name it."""

import tensorflow as tf

from tfdp.data.epoch_plan import epoch_order
from tfdp.data.pipeline_options import PipelineOptions
from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractSource


def explained(
    error: Exception, source: AbstractSource, options: PipelineOptions, place: tuple[int, int]
) -> Exception:
    """Returns the error that names the example, or `error` itself if every one can be read.

    Args:
      error: The error that was raised while the next batches were made.
      source: The source of the examples.
      options: The pipeline's options.
      place: The epoch, and the number of its examples that were taken.

    Cost: reads the examples that were to come, up to the one that cannot be read.
    """
    if not isinstance(error, tf.errors.InvalidArgumentError | tf.errors.NotFoundError):
        return error
    if not isinstance(source, AbstractIndexedSource):
        return error
    epoch, position = place
    order = epoch_order(len(source), options.seed, epoch, options.shuffle)
    said = source.explain(order[position:].tolist())
    return error if said is None else type(error)(error.node_def, error.op, said)
