"""The tape's gradients, summed over replicas in the call of the tape that returns them.

This holds in a step of Keras' trainer, with respect to variables and to anything else that is the
same on all replicas. What a step then does with a gradient g (clip it, take its sign, divide by
its norm) is seldom linear: the sum of f(g_r) over replicas is not f of the sum of g_r. Summed
before the step sees it, g means what it means on one device.

- A gradient with respect to the batch is not summed: each replica has the rows of its examples.
- Gradients that an optimizer accumulates wait for the sum until its window closes, which takes one
  sum a window. Accumulating is linear; until then they must be used for nothing else. So do those
  that a compression of updates sums, until the optimizer updates: see `compressing`.
- Under a strategy with a `synchronization` nothing is summed: each replica gets n times its own
  term of the gradient, and clips, scales and uses that. See `rounds`.
- Gradients for each example (jacobians, `vectorized_map`) are the replica's rows. They are summed
  where they reach an optimizer: see `arriving`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.compression import UpdateCompression
from tfdp.errors import GradientError
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import Variable
from tfdp.keras_adapter._tensorflow import could_possibly_record, parallel_for
from tfdp.keras_adapter.gradients import sparse_rows
from tfdp.keras_adapter.gradients.weighing import weighed
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Phase, Step, current
from tfdp.keras_adapter.tracing.layouts import MARK_OF, layouts_of
from tfdp.keras_adapter.tracing.marks import Mark, mark, mark_local
from tfdp.keras_adapter.tracing.walk import Place, Walk
from tfdp.keras_adapter.training import step_recording

_NO_GRADIENT = tf.UnconnectedGradients.NONE


@hook(tf.GradientTape, "gradient")
def gradient(
    original: Callable[..., Any],
    self: tf.GradientTape,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    unconnected_gradients: tf.UnconnectedGradients = _NO_GRADIENT,
) -> Any:
    """Returns the gradient of the whole batch's target."""
    step = _step()
    if step is None or target is None or step.in_backward or step.phase is Phase.PER_EXAMPLE:
        # A tape within a backward pass, as of what is computed again, gives a part of a gradient.
        return original(self, target, sources, output_gradients, unconnected_gradients)
    flat = tf.nest.flatten(sources)
    variables = [source for source in flat if _is_variable(source)]
    if variables and step.compiling:
        raise GradientError(
            "A gradient with respect to variables must be taken outside of what `jit_compile=True` "
            "compiles on CPU, where XLA cannot sum it over replicas, but the model's call takes "
            "one. Take it in `train_step`, or use jit_compile=False."
        )
    targets, weights = weighed(step, target, output_gradients, variables)
    with step.going_backward():
        gradients = original(self, targets, flat, weights, unconnected_gradients)
    walk = Walk()
    layouts = layouts_of(step, walk)
    everywhere = []
    for index, (source, value) in enumerate(zip(flat, gradients, strict=True)):
        if value is None:
            continue
        tensor = isinstance(source, tf.Tensor)
        if _is_variable(source) and isinstance(value, tf.Tensor):
            gradients[index] = _of_known_shape(value, source.shape)
        if _is_variable(source) or (tensor and layouts.is_free(Place(source))):
            everywhere.append(index)
        elif tensor:
            _mark(value, MARK_OF.get(layouts.of(Place(source))))
    share = step.share
    assert share is not None
    given = [gradients[index] for index in everywhere]
    waits = bool(variables) and _waits(step, share, variables)
    if waits:
        found = _waiting_or_summed(step, share, given, variables)
    else:
        compress = bool(variables) and _may_compress(step, share, variables)
        found = _summed(step, share, given, compress)
    for index, value in zip(everywhere, found, strict=True):
        gradients[index] = value
    return tf.nest.pack_sequence_as(sources, gradients)


@hook(tf.GradientTape, "jacobian")
def jacobian(
    original: Callable[..., Any], self: tf.GradientTape, target: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns the replica's own jacobian: its rows, where the target has rows of examples."""
    return _per_example(lambda: original(self, target, *args, **kwargs), target)


@hook(tf.GradientTape, "batch_jacobian")
def batch_jacobian(
    original: Callable[..., Any], self: tf.GradientTape, target: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns the replica's own jacobians, as `jacobian` does."""
    return _per_example(lambda: original(self, target, *args, **kwargs), target)


@hook(tf, "vectorized_map")
def vectorized_map(
    original: Callable[..., Any], fn: Any, elems: Any, *args: Any, **kwargs: Any
) -> Any:
    """Marks what rows of examples are mapped to as such rows, and sums no gradient within."""
    return _per_example(lambda: original(fn, elems, *args, **kwargs), *tf.nest.flatten(elems))


@hook(parallel_for, "pfor")
def pfor(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Sums no gradient within: no collective can run for all rows at once."""
    step = _step()
    if step is None:
        return original(*args, **kwargs)
    with step.during(Phase.PER_EXAMPLE):
        return original(*args, **kwargs)


def _step() -> Step | None:
    """Returns the step whose gradients are summed, if there is one."""
    step = current()
    if step is None or step.share is None or step.num_replicas == 1 or step.updating:
        return None
    return step


def _is_variable(source: Any) -> bool:
    return isinstance(source, (tf.Variable, Variable, tf.distribute.DistributedValues))


def _per_example(compute: Callable[[], Any], *rows: Any) -> Any:
    step = _step()
    if step is None:
        return compute()
    layouts = layouts_of(step, Walk())
    marks = [MARK_OF.get(layouts.of(Place(value))) for value in rows if tf.is_tensor(value)]
    with step.during(Phase.PER_EXAMPLE):
        result = compute()
    for value in tf.nest.flatten(result):
        if value is not None and any(marks):
            _mark(value, next(filter(None, marks)))
    return result


def _of_known_shape(gradient: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a variable's gradient with the variable's shape, so that it fits into a bucket.

    TensorFlow does not always know it, as that of a matrix which multiplies sequences.
    """
    known = gradient.shape.is_fully_defined() or not tf.TensorShape(shape).is_fully_defined()
    return gradient if known else tf.ensure_shape(gradient, shape)


def _mark(value: Any, as_what: Mark | None) -> None:
    if as_what is not None:
        mark(value, as_what)


def _tensors(value: Any) -> list[Any]:
    """Returns a tensor, or IndexedSlices with their tensors, which may be used by themselves."""
    return [value, value.values, value.indices] if isinstance(value, tf.IndexedSlices) else [value]


def _waits(step: Step, share: Share, variables: Sequence[Any]) -> bool:
    """Returns whether gradients are summed in the optimizer: accumulated or compressed ones."""
    if share.windows is None or step.is_alone:
        return False
    if share.windows.wait(variables):
        return True
    if step.replicas.exchange.shard is not None:
        return _may_scatter(step, share, variables) and not could_possibly_record()
    of_updates = step.replicas.exchange.update_compression is not None
    return of_updates and _may_compress(step, share, variables) and not could_possibly_record()


def _may_scatter(step: Step, share: Share, variables: Sequence[Any]) -> bool:
    """Returns whether the parts of gradients are summed in the optimizer, without their wholes."""
    assert share.windows is not None
    if share.windows.keras_own_step:
        return share.windows.is_for_update(variables)
    step.warn_once(
        "shard",
        "Gradients that a `train_step` of your own takes from a tape are summed whole, and then "
        "cut into the replicas' parts, because the step may use them before an optimizer does: "
        "each replica holds all of them, and sends half as much again. In Keras' own `train_step` "
        "and in loops of your own (`strategy.run`) each replica sums its part alone.",
    )
    return False


def _may_compress(step: Step, share: Share, variables: Sequence[Any]) -> bool:
    """Returns whether gradients with respect to variables reach the optimizer untouched."""
    compression = step.replicas.exchange.compression
    if share.windows is None or compression is None:
        return False
    if share.windows.keras_own_step:
        return share.windows.is_for_update(variables)
    if isinstance(compression, UpdateCompression) and compression.has_momentum:
        raise GradientError(
            f"Gradients must come to the update untouched to get the momentum of {compression!r}, "
            "but a `train_step` of your own takes them from a tape, and may use them before. Use "
            "Keras' own `train_step`, an optimizer with `gradient_accumulation_steps`, or a loop "
            "of your own (`strategy.run`); or tfdp.compression.ErrorFeedback and an optimizer "
            "with momentum."
        )
    step.warn_once(
        "compression",
        "Gradients that a `train_step` of your own takes from a tape are summed whole, without "
        "the strategy's `compression`, because the step may use them before an optimizer does. "
        "They are compressed in Keras' own `train_step`, in optimizers with "
        "`gradient_accumulation_steps`, and in loops of your own (`strategy.run`).",
    )
    return False


def _summed(step: Step, share: Share, gradients: list[Any], compress: bool) -> list[Any]:
    if not gradients:
        return []
    if step.is_alone:
        return [_own(step, share, value) for value in gradients]
    if could_possibly_record():
        sums = [_differentiable_sum(step, share, value) for value in gradients]
    else:
        with step_recording.watching_buckets() as watch:
            sums = sparse_rows.summed(step, gradients, share.select, watch, compress)
    for total in sums:
        for part in _tensors(total):
            mark(part, Mark.SUM)
    return list(sums)


def _own(step: Step, share: Share, value: Any) -> Any:
    """Returns the gradient that a replica updates with by itself: see `rounds`."""
    scale = tf.constant(step.num_replicas, tf.float32)
    found = map_values(lambda tensor: share.scaled(tensor, scale), value)
    for part in _tensors(found):
        mark(part, Mark.OWN)
    return found


def _differentiable_sum(step: Step, share: Share, value: Any) -> tf.Tensor:
    """Returns the sum of `value` over replicas, for an outer tape to differentiate.

    Every replica holds the sum and uses it in its own target. So the gradient of one replica's
    summand is the sum of what comes back on all of them.
    """

    @tf.custom_gradient
    def summed(value: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> tf.Tensor:
            (total,) = step.sum([upstream])
            return share.select(total)

        return step.sum_prepared([value], share.select)[0], backward

    return summed(tf.convert_to_tensor(value))


def _waiting_or_summed(
    step: Step, share: Share, gradients: list[Any], variables: Sequence[Any]
) -> list[Any]:
    """Returns substitutes for gradients that wait. Slices that `shard` cuts are summed at once."""
    shard = step.replicas.exchange.shard
    assert share.windows is not None
    if not (shard == "gradients" or (shard is not None and not share.windows.wait(variables))):
        return [_waiting(step, share, value) for value in gradients]
    is_now = [isinstance(value, tf.IndexedSlices) for value in gradients]  # and seen as they are
    sums = iter(_summed(step, share, list(itertools.compress(gradients, is_now)), False))
    pairs = zip(gradients, is_now, strict=True)
    return [next(sums) if now else _waiting(step, share, value) for value, now in pairs]


def _waiting(step: Step, share: Share, value: Any) -> Any:
    """Returns a substitute for the replica's own gradient, by which `arriving` finds the gradient.

    Any other use of the substitute is seen in the traced program: see `check_waiting`.
    """
    own = map_values(share.select, value)
    if isinstance(value, tf.IndexedSlices):
        stands_for = tf.IndexedSlices(
            tf.identity(own.values), tf.identity(own.indices), own.dense_shape
        )
        for part in (stands_for.values, stands_for.indices):
            mark(part, Mark.LOCAL)
    else:
        stands_for = tf.identity(own)
    step.waiting += [part for part in _tensors(stands_for) if tf.is_tensor(part)]
    return mark_local(stands_for, own)
