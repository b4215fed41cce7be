"""Parts of batches, of which each process takes the next that no other has taken."""

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import Turns
from tfdp.data.distributed import batch_sharding
from tfdp.data.feed import AbstractFeed

# Where `BatchShard.place` has the number of a share's rows.
_COUNT = 1


def in_turn(dataset: Any, turns: Turns, endless: bool) -> Any:
    """Returns the dataset of those parts of batches that this process takes.

    Each batch is divided into parts as for replicas. When the process begins a step, it takes for
    the next one the first part that is free, of any batch: a slow process takes fewer. All
    processes read all batches, in the same order, and each part is taken once in a pass.

    Args:
      dataset: The batches, the same in all processes.
      turns: Gives the turns.
      endless: Whether one pass follows another, for epochs that end within them; each must have a
        batch.

    Returns:
      A dataset of parts; each of its iterators is one more pass, or begins one.

    Raises:
      ValueError: The elements cannot be divided.
    """
    if turns.parts == 1:
        return dataset
    is_feed = isinstance(dataset, AbstractFeed)  # whose place in its data is that of all ranks
    shares = None if is_feed else batch_sharding.divide_dataset(dataset, turns.parts)
    if shares is None:
        raise ValueError(
            "Ranks that train apart take parts of batches in turn, so the training data of `fit` "
            "must be arrays, or a `tf.data.Dataset` of batches with an axis of examples, but "
            f"received {type(dataset).__name__} of {getattr(dataset, 'element_spec', None)}. Give "
            "`fit` arrays or such a dataset."
        )
    passes, turn = itertools.count(), turns.dataset()

    def begin(_: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda: np.int64(next(passes)), [], tf.int64)

    @tf.autograph.experimental.do_not_convert
    def parts(number: tf.Tensor) -> tf.data.Dataset:
        number = tf.ensure_shape(number, [])
        found = shares.filter(lambda share, place, *known: place[_COUNT] > 0)
        found = found.map(lambda share, place, *known: share).enumerate()
        found = found.scan(tf.constant(-1, tf.int64), _taker(turn, number))
        return found.filter(lambda taken, share: taken).map(lambda taken, share: share)

    # The turn of the next step is asked for while this one computes.
    begun = tf.data.Dataset.range(1).repeat(None if endless else 1)
    taken = begun.map(begin).flat_map(parts).prefetch(1)
    options = tf.data.Options()
    options.deterministic = True
    return taken.with_options(options)


def _checksum(values: Sequence[np.ndarray]) -> int:
    """Returns a checksum of a part, alike in all processes."""
    found = 0
    for value in map(np.asarray, values):  # one of texts has objects
        content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        found = zlib.crc32(content, found)
    return found


def _taker(turn: Callable[[int, int, int | None], int], number: tf.Tensor) -> Callable[..., Any]:
    """Returns what says of each part whether this process takes it, and asks for the next turn."""

    def asked(number: np.ndarray, last: np.ndarray, *first: np.ndarray) -> np.int64:
        return np.int64(turn(int(number), int(last), _checksum(first) if last < 0 else None))

    @tf.autograph.experimental.do_not_convert
    def take(next_: tf.Tensor, part: Any) -> Any:
        index, share = part

        def ask() -> tf.Tensor:
            values = tf.nest.flatten(share, expand_composites=True)
            found = tf.numpy_function(asked, [number, next_, *values], tf.int64)
            return tf.ensure_shape(found, [])

        next_ = tf.cond(next_ < index, ask, lambda: next_)
        return next_, (tf.equal(next_, index), share)

    return take
