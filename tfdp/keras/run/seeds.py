"""The seeds of Keras' random numbers in `strategy.run`, where each replica draws its own.

All numbers follow from `keras.utils.set_random_seed`, as on one device.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import replicas_of
from tfdp.keras._keras import GLOBAL_SEED_GENERATOR, SeedGenerator, global_state, seed_generator
from tfdp.keras.replica_step import Phase, Unseeded, current

# Knuth's multiplicative constant, by which the replicas' seeds are far apart. Replica 0 has an
# offset of 0, and so draws as one device does.
_STRIDE = 2654435761


@hook(SeedGenerator, "next")
def next_seed(original: Callable[..., Any], self: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
    """Returns the next seed of a generator, offset by the replica's number.

    A seed for an optimizer is the same on all replicas.
    """
    step = current()
    if step is None or step.updating:
        return original(self, *args, **kwargs)
    with step.during(Phase.SEED):
        seed = original(self, *args, **kwargs)
    if step.num_replicas == 1:
        return seed
    return seed + _offset(step.rank, seed.dtype)


def _offset(rank: int, dtype: tf.DType) -> tf.Tensor:
    """Returns the offset of a seed's two numbers: 0 or more to the first, 0 to the second."""
    return tf.constant([rank * _STRIDE % 2 ** (8 * dtype.size - 1), 0], dtype)


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
