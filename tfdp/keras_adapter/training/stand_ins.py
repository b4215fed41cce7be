"""The hooks of the program's own sums and gathers, which leave stand-ins out.

A replica without examples computes on a stand-in, another replica's example, which must not count.
Losses, moments and gradients leave it out by `Share.counted` and `Share.scaled`, variables by
`variables.statistics`, and the outputs of `predict` by `predictions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.hooks import hook
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Phase, current
from tfdp.keras_adapter.tracing.marks import mark_global

_CONTEXTS = tf.distribute.ReplicaContext.__mro__
_CONTEXT, _CONTEXT_THAT_GATHERS = (
    next((c for c in _CONTEXTS if name in vars(c)), tf.distribute.ReplicaContext)
    for name in ("all_reduce", "all_gather")
)
_SUM = tf.distribute.ReduceOp.SUM


@hook(_CONTEXT, "all_reduce")
def all_reduce(
    original: Callable[..., Any], self: Any, reduce_op: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    """Sums or averages the program's values over the replicas that have examples."""
    reduced = _reduced(original, self, reduce_op, value, *args, **kwargs)
    return _alike_on_all(reduced)


def _reduced(
    original: Callable[..., Any], self: Any, reduce_op: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    share = _share_of_program()
    if share is None:
        return original(self, reduce_op, value, *args, **kwargs)
    value = tf.nest.map_structure(share.counted, value, expand_composites=True)
    if tf.distribute.ReduceOp(getattr(reduce_op, "value", reduce_op).upper()) == _SUM:
        return original(self, reduce_op, value, *args, **kwargs)
    leaves = [*tf.nest.flatten(value), tf.cast(share.has_examples, tf.float32)]
    *sums, replicas = original(self, _SUM, leaves, *args, **kwargs)
    means = [map_values(lambda t: t / tf.cast(replicas, t.dtype), total) for total in sums]
    return tf.nest.pack_sequence_as(value, means)


@hook(_CONTEXT_THAT_GATHERS, "all_gather")
def all_gather(
    original: Callable[..., Any], self: Any, value: Any, axis: Any, *args: Any, **kwargs: Any
) -> Any:
    """Gathers the program's values from the replicas that have examples."""
    share = _share_of_program()
    if share is not None and not isinstance(self, _Plain):
        value = tf.nest.map_structure(lambda leaf: _cut_off(share, leaf, axis), value)
        # The gradient of TensorFlow's `all_gather` gathers the tensors' lengths. None of them must
        # be left out, so it is to use TensorFlow's own `all_gather`.
        self = _Plain(self, original)
    return _alike_on_all(original(self, value, axis, *args, **kwargs))


def _alike_on_all(values: Any) -> Any:
    """Marks `values`, in a step of Keras' trainer, as the same on all replicas."""
    step = current()
    if step is not None and step.share is not None:
        for value in tf.nest.flatten(values):
            mark_global(value)
    return values


class _Plain:
    """A replica's context with TensorFlow's own `all_gather`."""

    def __init__(self, context: Any, all_gather: Callable[..., Any]) -> None:
        self._context = context
        self._all_gather = all_gather

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def all_gather(self, value: Any, axis: Any, options: Any = None) -> Any:
        """Gathers as TensorFlow does, from every replica."""
        return self._all_gather(self._context, value, axis, options)


def _share_of_program() -> Share | None:
    """Returns the share if the program's own code runs and the share may be empty, else None."""
    step = current()
    if step is None or step.share is None or step.phase is not Phase.PROGRAM:
        return None
    return step.share if step.share.may_be_empty and step.num_replicas > 1 else None


def _cut_off(share: Share, leaf: Any, axis: Any) -> tf.Tensor:
    leaf = tf.convert_to_tensor(leaf)
    sizes = tf.shape(leaf)
    counts = tf.one_hot(axis, tf.rank(leaf), False, True) | share.has_examples
    return tf.slice(leaf, tf.zeros_like(sizes), tf.where(counts, sizes, 0))
