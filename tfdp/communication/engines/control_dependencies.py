"""Operations with effects that TensorFlow is not to order after all earlier ones."""

import tensorflow as tf


def run_independently(op: tf.Operation) -> None:
    """Lets `op` run as soon as its inputs are there, and always.

    TensorFlow would run it after all operations with effects that were traced before it, those of
    other replicas included.
    """
    graph = tf.compat.v1.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(op)
