"""An iterator that counts the batches that it gives, and the time that each is waited for.

An iterator carries the variable in which it counts as one of its parts. So a step that was traced
with one pipeline counts for another whose batches are of the same kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.data._tensorflow import IteratorSpec, OwnedIterator
from tfdp.data.feed import AbstractFeed
from tfdp.data.tally import HANDLE_SPEC, Clock, Tally


class CountingIterator(OwnedIterator):
    """An iterator over batches that counts those it gives, in graphs too."""

    tally: Tally
    feed: AbstractFeed | None = None  # known where the iterator was made, but not in graphs

    def get_next_as_optional(self) -> Any:
        """Returns the next batch, or an empty optional."""
        with Clock() as clock:
            optional = super().get_next_as_optional()
        is_there = tf.cast(optional.has_value(), tf.float64)
        self.tally.add(clock.seconds_until(is_there) * is_there, is_there)
        return optional

    def _next_internal(self) -> Any:
        with explained(self.feed), Clock() as clock:
            batch = super()._next_internal()
        self.tally.add(clock.seconds_until(batch))
        return batch

    @property
    def _type_spec(self) -> CountingIteratorSpec:
        return CountingIteratorSpec(self._element_spec)


class CountingIteratorSpec(IteratorSpec):
    """The spec of a `CountingIterator`, which a traced function knows it by."""

    @property
    def value_type(self) -> type:
        """The class that the spec describes."""
        return CountingIterator

    @property
    def _component_specs(self) -> tuple[Any, ...]:
        return (*super()._component_specs, HANDLE_SPEC)

    def _to_components(self, value: CountingIterator) -> tuple[Any, ...]:
        return (*super()._to_components(value), value.tally.handle)

    def _from_components(self, components: Any) -> CountingIterator:
        *parts, handle = components
        iterator = CountingIterator(components=parts, element_spec=self._element_spec)
        iterator.tally = Tally(handle)
        return iterator


def iterate(batches: tf.data.Dataset, feed: AbstractFeed, tally: Tally) -> CountingIterator:
    """Returns an iterator over a feed's batches, which counts in `tally`."""
    iterator = CountingIterator(batches)
    iterator.feed, iterator.tally = feed, tally
    return iterator


@contextlib.contextmanager
def explained(feed: AbstractFeed | None) -> Iterator[None]:
    """Raises the feed's explanation of an iterator's error, and tells the feed of the end."""
    try:
        yield
    except tf.errors.OutOfRangeError:
        if feed is not None:
            feed.end()
        raise
    except tf.errors.OpError as error:
        if feed is None:
            raise
        raise feed.explain(error) from error
