"""The graphs into which `strategy.run` traces replicas: seeds, order, tf.functions."""

import contextlib
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import ProcessGroup, Value
from tfdp.strategy._tensorflow import Function, PerReplica, PerReplicaSpec

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


class Lifting:
    """Makes of each tf.function one graph of all replicas, with its options, and keeps it.

    Its `input_signature` says what each replica gets; so of the values of all replicas the
    signature holds for each.

    Args:
      run_all: Calls a Python function as each replica, with arguments and keyword arguments.
      local_size: The number of replicas of this process.
    """

    def __init__(self, run_all: Callable[[Any, Any, Any], Any], local_size: int) -> None:
        self._run_all = run_all
        self._local_size = local_size
        self._plain: weakref.WeakKeyDictionary[Function, Function] = weakref.WeakKeyDictionary()
        self._signed: weakref.WeakKeyDictionary[Function, Function] = weakref.WeakKeyDictionary()

    def call(self, fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a tf.function as each replica.

        Raises:
          TypeError: A replica's arguments do not fit the function's `input_signature`.
        """
        several = any(isinstance(each, PerReplica) for each in tf.nest.flatten((args, kwargs)))
        if fn.input_signature and several:
            return self._call_signed(fn, args, kwargs)
        if fn not in self._plain:
            self._plain[fn] = fn._clone(python_function=self._of_all(fn))
        return self._plain[fn](*args, **kwargs)

    def _call_signed(self, fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if fn not in self._signed:
            specs = tf.nest.map_structure(
                lambda spec: PerReplicaSpec(*[spec] * self._local_size), fn.input_signature
            )
            # A function has no other way to be cloned with another signature.
            self._signed[fn] = Function._clone(_Signed(fn, specs), python_function=self._of_all(fn))
        bound = inspect.signature(fn.python_function).bind(*args, **kwargs)
        bound.apply_defaults()
        count = len(fn.input_signature)
        each = map(self._of_each, fn.input_signature, bound.args)
        return self._signed[fn](*each, *bound.args[count:], **bound.kwargs)

    def _of_all(self, fn: Function) -> Callable[..., Any]:
        python_function, run_all = fn.python_function, self._run_all

        def of_all(*args: Any, **kwargs: Any) -> Any:
            return run_all(python_function, args, kwargs)

        return functools.wraps(python_function)(of_all)

    def _of_each(self, spec: Any, value: Any) -> Any:
        """Returns an argument as one value for each replica, leaf by leaf of its signature."""
        wrapped = (
            tf.nest.map_structure if tf.nest.is_nested(spec) else lambda wrap, leaf: wrap(leaf)
        )
        return wrapped(self._wrapped, value)

    def _wrapped(self, value: Any) -> Any:
        return value if isinstance(value, PerReplica) else PerReplica([value] * self._local_size)


class _Signed:
    """A stand-in for a tf.function that has another signature; else it is the same."""

    def __init__(self, fn: Function, input_signature: Any) -> None:
        self._fn = fn
        self.input_signature = input_signature

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)
