"""The input of a process that reads its own rows of each batch."""

from collections.abc import Iterator
from typing import Any

import jax
import tensorflow as tf

from tfdp.data.feed import AbstractFeed
from tfdp.data.tally import Clock
from tfdp.strategy.xla.call_arguments import OwnRows

_IN_A_GRAPH = (
    "The batches of a `tfdp.data.pipeline`, of which each process reads its own rows, must be "
    "asked for outside of `tf.function`, but are inside. Write the loop in Python: `for batch in "
    "data: strategy.run(step, args=batch)`."
)


def are_sharded(feed: AbstractFeed) -> bool:
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
        self._feed, self._shards = feed, feed.shards(jax.process_count(), range(rank, rank + 1))

    @property
    def element_spec(self) -> Any:
        """The specification of a whole batch."""
        return self._feed.element_spec  # type: ignore[attr-defined]

    def cardinality(self) -> tf.Tensor:
        """Returns the number of batches of an epoch, as tf.data writes it; int64."""
        return self._feed.cardinality()

    def __iter__(self) -> Iterator[Any]:
        """Yields batches with `OwnRows` in place of each tensor.

        Raises:
          RuntimeError: A graph is traced, which would have one batch for ever.
        """
        if tf.inside_function():
            raise RuntimeError(_IN_A_GRAPH)
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        elements = iter(self._shards)
        while True:
            if tf.inside_function():
                raise RuntimeError(_IN_A_GRAPH)
            with Clock() as clock:
                element = next(elements, None)
            if element is None:
                return
            data, place = element
            # A checkpoint after this batch's step knows of it, before the next one is asked for.
            self._feed.tally.add(clock.seconds_until(place))
            _, size, _, whole = place.numpy()
            # A process without rows has one of another's in their place.
            yield tf.nest.map_structure(
                lambda leaf, size=size, whole=whole: OwnRows(leaf[:size], int(whole)), data
            )
