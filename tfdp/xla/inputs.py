"""The input of a process that reads its own rows of each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import tensorflow as tf

from tfdp.data.feed import AbstractFeed
from tfdp.xla.compiled import OwnRows


def are_cut(feed: AbstractFeed) -> bool:
    """Returns whether each process reads its own rows of a feed's batches.

    Where they have strings, the host makes numbers of whole batches.
    """
    spec = feed.element_spec  # type: ignore[attr-defined]
    return all(getattr(leaf, "dtype", None) != tf.string for leaf in tf.nest.flatten(spec))


class OwnRowsDataset:
    """The batches of a feed, of which each process reads its own rows.

    Args:
      feed: The feed, alike in all processes.
    """

    def __init__(self, feed: AbstractFeed) -> None:
        rank = jax.process_index()
        self._feed, self._cuts = feed, feed.cuts(jax.process_count(), range(rank, rank + 1))

    @property
    def element_spec(self) -> Any:
        """The specification of a whole batch."""
        return self._feed.element_spec  # type: ignore[attr-defined]

    def cardinality(self) -> tf.Tensor:
        """Returns the number of batches of an epoch, as tf.data writes it; int64."""
        return self._feed.cardinality()

    def __iter__(self) -> Iterator[OwnRows]:
        for data, place in self._cuts:
            _, size, _, whole = place.numpy()
            # A process without rows has one of another's in their place.
            own = tf.nest.map_structure(lambda leaf, size=size: leaf[:size], data)
            yield OwnRows(own, int(whole))
