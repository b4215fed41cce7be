"""Random layers draw for a share of the batch what one device draws for these examples.

Everything follows from `keras.utils.set_random_seed`, as on one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter import philox
from tfdp.keras_adapter._keras import (
    GLOBAL_SEED_GENERATOR,
    SeedGenerator,
    cast_seed,
    draw_seed,
    global_state,
    random,
    seed_generator,
)
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.layouts import MARK_OF
from tfdp.keras_adapter.provenance import Mark, mark
from tfdp.keras_adapter.step import Phase, Step, Unseeded, current, is_tfdp
from tfdp.keras_adapter.traced import Place, Walk
from tfdp.keras_adapter.weighing import layouts_of

# Knuth's multiplicative constant: the replicas' seeds are far apart. Replica 0 draws as one device.
_STRIDE = 2654435761


@hook(SeedGenerator, "next")
def next_seed(original: Callable[..., Any], self: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
    """The next seed, offset by the replica.

    That of an optimizer, and of a draw for the whole batch, is the same everywhere.
    """
    step = current()
    if step is None or step.updating:
        return original(self, *args, **kwargs)
    with step.during(Phase.SEED):
        seed = original(self, *args, **kwargs)
    if step.phase is Phase.DRAW:
        return seed
    if step.rank == 0:
        return mark(seed, Mark.RANDOM)
    bits = 8 * seed.dtype.size
    offset = step.rank * _STRIDE % 2 ** (bits - 1)
    return mark(seed + tf.constant([offset, 0], seed.dtype), Mark.RANDOM)


@hook(seed_generator, "global_seed_generator")
def global_seed_generator(original: Callable[..., Any]) -> SeedGenerator:
    """The generator of draws without a seed, the same for the threads of all replicas."""
    step = current()
    if step is None:
        return _usable(original())
    if step.unseeded.generator is None:
        step.unseeded.generator = original()
    return step.unseeded.generator


def _usable(generator: SeedGenerator) -> SeedGenerator:
    """The generator itself or, in the scope of another strategy than its own, one that goes on."""
    owner = _owner(generator)
    elsewhere = tf.distribute.has_strategy() and tf.distribute.get_strategy() is not owner
    if not (is_tfdp(owner) and elsewhere):
        return generator
    copied = _copied(generator)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, copied)
    return copied


def _owner(generator: SeedGenerator) -> Any:
    """The strategy in whose scope it was made; None outside of any."""
    return getattr(generator.state.value, "distribute_strategy", None)


def _copied(generator: SeedGenerator) -> SeedGenerator:
    """One for the current strategy, in the same state."""
    with tf.init_scope():
        value = generator.state.value
        state = tf.convert_to_tensor(getattr(value, "values", [value])[0])
        copied = SeedGenerator(seed=0)
        copied.state.assign(state)
    return copied


@contextlib.contextmanager
def unseeded(strategy: tf.distribute.Strategy) -> Iterator[Unseeded]:
    """Takes the calling thread's generator along to its replicas, and theirs back.

    One that was made outside of the scope goes on under it, from where it is.
    """
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    if generator is not None and _owner(generator) is not strategy:
        # In this order: a scope that is entered while tracing ends where `init_scope` begins.
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
    """This replica's rows of what one device draws for the whole batch."""
    if not _of_whole_batch(shape):
        return original(shape, minval, maxval, dtype, seed)
    place = _place(shape, seed)
    dtype = tf.as_dtype(dtype or keras.config.floatx())
    low, high = tf.cast(minval, dtype), tf.cast(maxval, dtype)
    return _noted(philox.uniform(shape, *place, dtype) * (high - low) + low, shape)


@hook(random, "normal")
def normal(
    original: Callable[..., Any],
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> Any:
    """This replica's rows of what one device draws for the whole batch."""
    if not _of_whole_batch(shape):
        return original(shape, mean, stddev, dtype, seed)
    place = _place(shape, seed)
    dtype = tf.as_dtype(dtype or keras.config.floatx())
    drawn = philox.normal(shape, *place, dtype)
    return _noted(drawn * tf.cast(stddev, dtype) + tf.cast(mean, dtype), shape)


@hook(random, "randint")
def randint(
    original: Callable[..., Any],
    shape: Any,
    minval: Any,
    maxval: Any,
    dtype: Any = "int32",
    seed: Any = None,
) -> Any:
    """This replica's rows of what one device draws for the whole batch."""
    if not _of_whole_batch(shape):
        return original(shape, minval, maxval, dtype, seed)
    place = _place(shape, seed)
    drawn = tf.int32 if keras.backend.standardize_dtype(dtype) == "int32" else tf.int64
    return _noted(tf.cast(philox.integers(shape, *place, drawn, minval, maxval), dtype), shape)


@hook(random, "dropout")
def dropout(
    original: Callable[..., Any],
    inputs: Any,
    rate: Any,
    noise_shape: Any = None,
    seed: Any = None,
) -> Any:
    """Drops from this replica's rows what one device drops from them."""
    if not _of_whole_batch() or rate in (0.0, 1.0):
        return original(inputs, rate, noise_shape, seed)
    shape = keras.ops.shape(inputs)
    if noise_shape is not None:
        given = enumerate(noise_shape)
        shape = [shape[axis] if size is None else size for axis, size in given]
    if not _of_whole_batch(shape):
        return original(inputs, rate, noise_shape, seed)
    # Noise of fewer axes than the inputs lacks that of the examples.
    place = _place(shape, seed, of_examples=len(shape) == len(inputs.shape))

    def sample(shape: Any, dtype: Any) -> tf.Tensor:
        return philox.uniform(shape, *place, tf.as_dtype(dtype))

    kept = tf.nn.experimental.general_dropout(inputs, rate, sample, noise_shape=shape)
    return _noted(kept, keras.ops.shape(inputs))


def _noted(drawn: tf.Tensor, shape: Any) -> tf.Tensor:
    """Notes on what was drawn for `shape` where the examples lie in it."""
    step: Any = current()
    layout = layouts_of(step, Walk()).of_draw(shape)
    return mark(drawn, MARK_OF[layout]) if layout in MARK_OF else drawn


def _of_whole_batch(shape: Any = ()) -> bool:
    """Whether one of several replicas can draw as one device does.

    It cannot outside of a step of Keras' trainer, where its share of the batch is not known; nor
    where the examples seem to be on another axis than 0, as in (steps, examples, features).
    """
    step = current()
    if step is None or step.share is None or step.updating or step.num_replicas == 1:
        return False
    sizes, rows = _sizes(shape), step.share.rows
    if sizes is None or len(sizes) == 0:
        return True
    first, *others = (tf.get_static_value(size) for size in sizes)
    if rows is None or first is None:
        return first is None or None not in others
    return first % max(rows, 1) == 0 or rows not in others


def _sizes(shape: Any) -> Any:
    """The sizes of `shape`, some of them tensors; None where not even their number is known."""
    return tf.get_static_value(shape) if tf.is_tensor(shape) else shape


def _place(shape: Any, seed: Any, of_examples: bool = True) -> tuple[tf.Tensor, tf.Tensor]:
    """Where a replica's draw begins in one device's: the seed, the numbers before."""
    step: Any = current()
    with step.during(Phase.DRAW):
        seed = cast_seed(draw_seed(seed))
    return seed, _numbers_before(step, shape) if of_examples else tf.constant(0, tf.int64)


def _numbers_before(step: Step, shape: Any) -> tf.Tensor:
    """How many numbers of one device's draw come before this replica's.

    A draw is of the examples where axis 0 is as long as the share is, or a multiple of that, as in
    (examples x windows, features): then it begins with the share's first example. Any other, such
    as noise on weights, is the same on all replicas.
    """
    share, sizes = step.share, _sizes(shape)
    assert share is not None
    if sizes is not None and len(sizes) == 0:
        return tf.constant(0, tf.int64)
    if sizes is not None and share.rows is None and tf.get_static_value(sizes[0]) is not None:
        return tf.constant(0, tf.int64)  # The share's length is not known before it comes.
    first_size = shape[0]
    if tf.is_tensor(first_size) and layouts_of(step, Walk()).is_free(Place(first_size)):
        return tf.constant(0, tf.int64)  # such as the length of the whole batch
    sizes = tf.cast(tf.convert_to_tensor(shape), tf.int64)
    _, first, rows, _ = tf.unstack(tf.convert_to_tensor(share.place))
    rows_per_example = sizes[0] // tf.maximum(rows, 1)
    first_row = tf.where(rows_per_example * rows == sizes[0], first * rows_per_example, 0)
    return mark(first_row * tf.reduce_prod(sizes[1:]), Mark.RANDOM)
