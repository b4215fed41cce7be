"""The hooks by which a replica draws for its share what one device draws for these examples.

All numbers follow from `keras.utils.set_random_seed`, as on one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    GLOBAL_SEED_GENERATOR,
    SeedGenerator,
    cast_seed,
    draw_seed,
    global_state,
    random,
    seed_generator,
)
from tfdp.keras_adapter._tensorflow import is_computed_again
from tfdp.keras_adapter.layers.outputs import Claims
from tfdp.keras_adapter.random import draws, philox
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Phase, Step, Unseeded, current
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.walk import Place, Walk
from tfdp.keras_adapter.variables import branches
from tfdp.replicas import replicas_of

# Knuth's multiplicative constant, by which the replicas' seeds are far apart. Replica 0 has an
# offset of 0, and so draws as one device does.
_STRIDE = 2654435761


@hook(SeedGenerator, "next")
def next_seed(original: Callable[..., Any], self: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
    """Returns the next seed of a generator, offset by the replica's number.

    A seed for an optimizer, or for a draw for the whole batch, is the same on all replicas.
    """
    step = current()
    if step is None or step.updating:
        return original(self, *args, **kwargs)
    if is_computed_again():
        raise GradientError(
            "What is computed again in the backward pass (`tf.recompute_grad`, keras.RematScope) "
            f"must draw no random numbers, but {step.trace.name} draws some there, which would be "
            "others than in the forward pass, on one device, too. Take random layers, such as "
            "Dropout, out of what is computed again."
        )
    branches.note(step, branches.DRAW)
    with step.during(Phase.SEED):
        seed = original(self, *args, **kwargs)
    if step.phase is Phase.DRAW:
        return seed
    if step.num_replicas == 1:
        return mark(seed, Mark.RANDOM)
    return mark(seed + _offset(step.replica_id, seed.dtype), Mark.RANDOM)


def _offset(replica_id: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the offset of a seed's two numbers: 0 or more to the first, 0 to the second."""
    far = tf.cast(replica_id, tf.int64) * _STRIDE
    far = tf.bitwise.bitwise_and(far, 2 ** (8 * dtype.size - 1) - 1)
    return tf.stack([tf.cast(far, dtype), tf.zeros([], dtype)])


@hook(seed_generator, "global_seed_generator")
def global_seed_generator(original: Callable[..., Any]) -> SeedGenerator:
    """Returns the generator of draws without a seed, the same in the threads of all replicas."""
    step = current()
    if step is None:
        return _usable(original())
    if step.unseeded.generator is None:
        step.unseeded.generator = original()
    return step.unseeded.generator


def _usable(generator: SeedGenerator) -> SeedGenerator:
    """Returns the generator; in another strategy's scope than its own, a copy of it."""
    owner = _owner(generator)
    elsewhere = tf.distribute.has_strategy() and tf.distribute.get_strategy() is not owner
    if replicas_of(owner) is None or not elsewhere:
        return generator
    copied = _copied(generator)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, copied)
    return copied


def _owner(generator: SeedGenerator) -> Any:
    """Returns the strategy in whose scope a generator was made; None if it was made in none."""
    return getattr(generator.state.value, "distribute_strategy", None)


def _copied(generator: SeedGenerator) -> SeedGenerator:
    """Returns a new generator in the current strategy's scope, in the state of the given one."""
    with tf.init_scope():
        value = generator.state.value
        state = tf.convert_to_tensor(getattr(value, "values", [value])[0])
        copied = SeedGenerator(seed=0)
        copied.state.assign(state)
    return copied


@contextlib.contextmanager
def unseeded(strategy: tf.distribute.Strategy) -> Iterator[Unseeded]:
    """Passes the calling thread's generator of draws without a seed to its replicas, and back.

    A generator that was made outside of the strategy's scope is copied into it, with its state.

    Args:
      strategy: The strategy that the replicas belong to.

    Yields:
      The holder of the generator, which the replicas share.
    """
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    if generator is not None and _owner(generator) is not strategy:
        # `init_scope` must come first: it leaves a scope that was entered while tracing.
        with tf.init_scope(), strategy.scope():
            generator = _copied(generator)
    found = Unseeded(generator)
    yield found
    if found.generator is not None:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, found.generator)


@hook(random, "uniform")
def uniform(
    original: Callable[..., Any],
    shape: Any,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> Any:
    """Draws this replica's rows of the uniform numbers that one device draws for the batch."""

    def draw(seed: tf.Tensor, skipped: tf.Tensor) -> tf.Tensor:
        kind = tf.as_dtype(dtype or keras.config.floatx())
        low, high = tf.cast(minval, kind), tf.cast(maxval, kind)
        return philox.uniform(shape, seed, skipped, kind) * (high - low) + low

    return _drawn(shape, seed, draw, lambda: original(shape, minval, maxval, dtype, seed))


@hook(random, "normal")
def normal(
    original: Callable[..., Any],
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> Any:
    """Draws this replica's rows of the normal numbers that one device draws for the batch."""

    def draw(seed: tf.Tensor, skipped: tf.Tensor) -> tf.Tensor:
        kind = tf.as_dtype(dtype or keras.config.floatx())
        return philox.normal(shape, seed, skipped, kind) * tf.cast(stddev, kind) + tf.cast(
            mean, kind
        )

    return _drawn(shape, seed, draw, lambda: original(shape, mean, stddev, dtype, seed))


@hook(random, "randint")
def randint(
    original: Callable[..., Any],
    shape: Any,
    minval: Any,
    maxval: Any,
    dtype: Any = "int32",
    seed: Any = None,
) -> Any:
    """Draws this replica's rows of the integers that one device draws for the batch."""

    def draw(seed: tf.Tensor, skipped: tf.Tensor) -> tf.Tensor:
        kind = tf.int32 if keras.backend.standardize_dtype(dtype) == "int32" else tf.int64
        return tf.cast(philox.integers(shape, seed, skipped, kind, minval, maxval), dtype)

    return _drawn(shape, seed, draw, lambda: original(shape, minval, maxval, dtype, seed))


@hook(random, "dropout")
def dropout(
    original: Callable[..., Any],
    inputs: Any,
    rate: Any,
    noise_shape: Any = None,
    seed: Any = None,
) -> Any:
    """Drops from this replica's rows the entries that one device drops from them."""
    step = _step()
    if step is None or rate in (0.0, 1.0):
        return original(inputs, rate, noise_shape, seed)
    inputs = tf.convert_to_tensor(inputs)
    shape: Any = keras.ops.shape(inputs)
    if noise_shape is not None:
        given = enumerate(noise_shape)
        shape = [shape[axis] if size is None else size for axis, size in given]
        draws.warn_of_one(step, shape)
    claims = Claims(step)
    layout = of_inputs = claims.layouts.of(Place(inputs))
    first = constant_value(shape[0]) if len(shape) == len(inputs.shape) else 1
    if first is not None and first != inputs.shape[0]:
        layout = Layout.FREE  # one noise for all examples
    elif layout is not Layout.FREE and draws.is_later(step.share.rows, shape):
        return original(inputs, rate, noise_shape, seed)
    elif first is not None and step.share.rows is None:
        layout = Layout.FREE
    elif layout is Layout.FREE and first is not None and first % step.share.rows == 0:
        # The inputs are the ones from which a recurrent layer makes its mask, or a weight.
        of_weight = draws.reads_variable(Walk(), Place(inputs))
        layout = of_inputs = Layout.FREE if of_weight else Layout.FITS
    place = _place(step, shape, seed, layout)

    def sample(shape: Any, dtype: Any) -> tf.Tensor:
        return philox.uniform(shape, *place, tf.as_dtype(dtype))

    kept = tf.nn.experimental.general_dropout(inputs, rate, sample, noise_shape=shape)
    claims.note(kept, of_inputs)
    if layout is Layout.FITS:
        draws.note(step, kept, layout)
    return kept


def _drawn(shape: Any, seed: Any, draw: Callable[..., Any], original: Callable[[], Any]) -> Any:
    """Draws random numbers of a shape for this replica.

    Args:
      shape: The shape that the program asks for.
      seed: The seed that the program gives.
      draw: Draws the numbers, given a seed and how many numbers come before them.
      original: Draws as Keras does; called if the replica cannot draw as one device does.
    """
    step = _step()
    if step is None:
        return original()
    if not tf.is_tensor(shape) and None in shape:
        raise ValueError(
            f"A draw needs a number for each size, but its shape is {tuple(shape)}: the number of "
            "examples is not known before the step runs. Use "
            "`keras.ops.shape(x)[0]`, not `x.shape[0]`."
        )
    claims = Claims(step)
    layout = draws.layout_of(claims.layouts, step.share.rows, shape)
    draws.warn_of_one(step, shape)
    later = layout is Layout.SPREAD
    value = original() if later else draw(*_place(step, shape, seed, layout))
    if layout is Layout.FITS:
        mark(value, Mark.FITS)
    elif layout is Layout.ROWS:
        claims.note(value, layout)
    draws.note(step, value, layout)
    return value


def _step() -> Any:
    """Returns the step if its replica must and can draw its part of one device's draw, else None.

    It cannot outside of a step of Keras' trainer, where its share of the batch is not known.
    """
    step = current()
    if step is None or step.share is None or step.updating or step.num_replicas == 1:
        return None
    return step


def _place(step: Step, shape: Any, seed: Any, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns one device's seed, and the count of its numbers that come before this replica's."""
    with step.during(Phase.DRAW):
        seed = cast_seed(draw_seed(seed))
    share = step.share
    assert share is not None
    if layout is Layout.FREE:
        return seed, tf.constant(0, tf.int64)
    return seed, _numbers_before(share, shape)


def _numbers_before(share: Share, shape: Any) -> tf.Tensor:
    """Counts the numbers of one device's draw that come before this replica's.

    A draw may have one row for each example of the share, or several, as in (examples x windows,
    features). One device draws the rows of all earlier examples first, so it has drawn (rows per
    example) x (earlier examples) x (numbers per row) before. If a draw has any other length, since
    examples were left out, no replica knows how many the others draw. Then each begins `2**32`
    numbers later for each earlier example, so that no two replicas draw the same numbers.
    """
    sizes = tf.cast(tf.convert_to_tensor(shape), tf.int64)
    _, first, rows, _ = tf.unstack(tf.convert_to_tensor(share.place))
    rows_per_example = sizes[0] // tf.maximum(rows, 1)
    own = tf.where(
        rows_per_example * rows == sizes[0],
        first * rows_per_example * tf.reduce_prod(sizes[1:]),
        first * 2**32,
    )
    return mark(own, Mark.RANDOM)
