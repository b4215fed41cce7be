"""The graph into which `strategy.run` traces replicas: its seed, and what it waits for."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import ProcessGroup, Value

# Knuth's multiplicative constant keeps the processes' seeds far apart. Rank 0 adds none of it, and
# so draws as a process that is alone.
_SEED_STRIDE = 2654435761


@contextlib.contextmanager
def seeded_apart(processes: ProcessGroup) -> Iterator[None]:
    """Gives the graph that is being built another seed in each process.

    TensorFlow seeds a random operation by its graph's seed and its number, and the numbers are
    alike in all processes. Other seeds make the processes' random numbers differ, as those of one
    process' replicas do.
    """
    graph = tf.compat.v1.get_default_graph()
    seed = graph.seed
    if seed is None or processes.world_size == 1:
        yield  # a seed that the function itself sets is to stay
        return
    graph.seed = (seed + processes.rank * _SEED_STRIDE) % 2**31
    try:
        yield
    finally:
        graph.seed = seed


def after(args: Any, kwargs: Any) -> contextlib.AbstractContextManager[None]:
    """Lets operations of a graph run only once the arguments, such as a batch, are there.

    Otherwise the step that finds the end of the data would count in `iterations`, an update that
    needs no batch.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    tensors = itertools.chain.from_iterable(map(_tensors, tf.nest.flatten((args, kwargs))))
    return tf.control_dependencies([each for each in tensors if tf.is_symbolic_tensor(each)])


def _tensors(leaf: Any) -> list[Value]:
    if isinstance(leaf, tf.IndexedSlices):  # which may be made of lists
        return [leaf.values, leaf.indices, leaf.dense_shape]
    return tf.nest.flatten(leaf, expand_composites=True)
