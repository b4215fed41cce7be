"""Counts each batch when a step takes it, and the time until it is there.

A number travels with each batch and says whose it is: a step that was traced with one pipeline
then counts for another whose batches are of the same kind.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.data._tensorflow import IteratorSpec, OwnedIterator
from tfdp.determinism import seconds_in_graph

# Called with the seconds that were waited.
Take = Callable[[float], None]

_NUMBERS = itertools.count(1)
_COUNTERS: weakref.WeakValueDictionary[int, Counter] = weakref.WeakValueDictionary()


class Counter:
    """What is to be called for each batch; lives as long as what holds it.

    Args:
      take: Called with the seconds that were waited.
      end: Called when an iterator has no more.
      explain: Called with an error of an iterator; returns what is to be raised in its place.
    """

    def __init__(
        self,
        take: Take,
        end: Callable[[], None],
        explain: Callable[[Exception], Exception],
    ) -> None:
        self.take = take
        self.end = end
        self.explain = explain
        self.number = next(_NUMBERS)
        _COUNTERS[self.number] = self

    def mark(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Each batch as (batch, the counter's number)."""
        # No `map`: it would cost each iterator some 5 ms at its start.
        numbers = tf.data.Dataset.from_tensors(tf.constant(self.number, tf.int64)).repeat()
        return tf.data.Dataset.zip((batches, numbers))

    def observe(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """`batches`, each counted when it leaves the dataset, and the time until it is there."""
        number = self.number
        # Zip asks in order: the clock, then the batches.
        asked = tf.data.Dataset.range(1).repeat().map(lambda _: seconds_in_graph())

        def take(asked: tf.Tensor, batch: Any) -> Any:
            waited = seconds_in_graph() - asked
            tf.numpy_function(take_number, [tf.constant(number, tf.int64), waited], [])
            return batch

        return tf.data.Dataset.zip((asked, batches)).map(take)


class Clock:
    """Times what is done in its context, eagerly or by a graph."""

    def __enter__(self) -> Clock:
        if tf.executing_eagerly():
            self._asked: Any = time.perf_counter()
            self._order: Any = contextlib.nullcontext()
        else:
            self._asked = seconds_in_graph()
            self._order = tf.control_dependencies([self._asked])
        self._order.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._order.__exit__(*error)

    def take(self, number: tf.Tensor) -> None:
        """Tells the counter of that number, once the number is there."""
        if tf.executing_eagerly():
            take_number(number.numpy(), time.perf_counter() - self._asked)
            return
        with tf.control_dependencies([number]):
            waited = seconds_in_graph() - self._asked
        tf.numpy_function(take_number, [number, waited], [])


class CountingIterator(OwnedIterator):
    """An iterator of marked batches that gives the batches, in graphs too."""

    counter: Counter | None = None

    @property
    def element_spec(self) -> Any:
        """Of the batches."""
        return self._element_spec[0]

    def get_next_as_optional(self) -> Any:
        """The next batch, or none."""
        marked = OwnedIterator(
            components=[self._iterator_resource], element_spec=self._element_spec
        )
        return take_optional(marked.get_next_as_optional)

    def _next_internal(self) -> Any:
        with explained(self.counter), Clock() as clock:
            batch, number = super()._next_internal()
        clock.take(number)
        return batch

    @property
    def _type_spec(self) -> CountingIteratorSpec:
        return CountingIteratorSpec(self._element_spec)


class CountingIteratorSpec(IteratorSpec):
    """What a traced function knows of such an iterator."""

    @property
    def value_type(self) -> type:
        """The class."""
        return CountingIterator

    def _from_components(self, components: Any) -> CountingIterator:
        return CountingIterator(components=components, element_spec=self._element_spec)


def iterate(batches: tf.data.Dataset, counter: Counter) -> CountingIterator:
    """An iterator over marked batches."""
    iterator = CountingIterator(batches)
    iterator.counter = counter
    return iterator


@contextlib.contextmanager
def explained(counter: Counter | None) -> Iterator[None]:
    """Raises what the counter makes of an error of an iterator."""
    try:
        yield
    except tf.errors.OutOfRangeError:
        if counter is not None:
            counter.end()
        raise
    except tf.errors.OpError as error:
        if counter is None:
            raise
        raise counter.explain(error) from error


def take_optional(get_next: Callable[[], Any]) -> Any:
    """An optional batch out of an optional marked one, which `get_next` gets; counted if there."""
    with Clock() as clock:
        optional = get_next()

    def taken() -> Any:
        batch, number = optional.get_value()
        clock.take(number)
        return tf.experimental.Optional.from_value(batch)

    spec = optional.element_spec[0]
    return tf.cond(optional.has_value(), taken, lambda: tf.experimental.Optional.empty(spec))


def take_number(number: np.ndarray, waited_seconds: np.ndarray) -> None:
    """Tells the counter of that number, if it is still there."""
    counter = _COUNTERS.get(int(number))
    if counter is not None:
        counter.take(float(waited_seconds))
