"""The count of the batches that were taken, and the iterator that keeps it as one of its parts.

So a step that was traced with one pipeline counts for another whose batches are of the same kind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.determinism import seconds_in_graph
from tfdp.data._tensorflow import IteratorSpec, OwnedIterator
from tfdp.data.feed import AbstractFeed

# The spec of a variable that is a part of an iterator.
HANDLE_SPEC = tf.TensorSpec([], tf.resource)


def new_handle(value: Any) -> tf.Tensor:
    """Returns the handle of a new variable with `value`, which lives as long as the handle."""
    with tf.device("CPU:0"):
        value = tf.convert_to_tensor(value)
        handle = tf.raw_ops.VarHandleOp(
            dtype=value.dtype,
            shape=value.shape,
            shared_name="cd2c89b7-88b7-44c8-ad83-06c2a9158347",
        )  # TensorFlow's name for resources without one
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle


class Clock:
    """Times the work in its context, eagerly or in a graph."""

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

    def seconds_until(self, value: Any) -> Any:
        """Returns the seconds from the context's beginning until `value`, a nest, is there."""
        if tf.executing_eagerly():
            return time.perf_counter() - self._asked
        first, *_ = tf.nest.flatten(value, expand_composites=True)
        with tf.control_dependencies([first]):
            return seconds_in_graph() - self._asked


class Tally:
    """The number of batches that were taken, and the seconds that were waited for them.

    Both are in one variable, which iterators write wherever they run.

    Args:
      handle: The variable's handle; a graph is given it as a part of an iterator. None: a new one.

    >>> tally = Tally()
    >>> tally.add(0.5)
    >>> tally.read()
    (1, 0.5)
    """

    def __init__(self, handle: tf.Tensor | None = None) -> None:
        self.handle = new_handle(np.zeros(2)) if handle is None else handle

    def add(self, waited_seconds: Any, batches: Any = 1.0) -> None:
        """Counts a batch, or with a scalar tensor of 0.0 none; eagerly or in a graph."""
        both = tf.convert_to_tensor([batches, waited_seconds], tf.float64)
        tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=both)

    def read(self) -> tuple[int, float]:
        """Returns the number of batches, and the seconds."""
        with tf.init_scope():
            both = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float64)
        batches, seconds = both.numpy().tolist()
        return int(batches), seconds

    def observe(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Counts each batch that leaves the dataset, and the time until it is there."""
        # `zip` asks its datasets in order: the clock first, then the batches.
        asked = tf.data.Dataset.range(1).repeat().map(lambda _: seconds_in_graph())

        def take(asked: tf.Tensor, batch: Any) -> Any:
            self.add(seconds_in_graph() - asked)
            return batch

        return tf.data.Dataset.zip((asked, batches)).map(take)


BROKEN = (
    "an iterator whose dataset raised an error, or which was interrupted, cannot go on. Make a new "
    "one, with `iter(dataset)`."
)


class Fetching:
    """A flag of an iterator that is up while the iterator fetches, and stays up after an error.

    An error on one device cancels a step while the other devices wait for their shares, and the
    shares that they are given are lost. From then on the devices' buffers are filled and emptied
    unevenly, until all devices wait.

    Args:
      handle: The handle of a boolean variable; a graph is given it as the iterator's other parts.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self.handle = handle

    @classmethod
    def made(cls) -> Fetching:
        """Makes a new flag, which lives as long as its handle."""
        return cls(new_handle(False))

    def begin(self) -> list[tf.Operation]:
        """Puts the flag up, and returns the operations that fetching must wait for.

        Raises:
          InvalidArgumentError: The flag is up already: an earlier fetch broke. In a graph the
            operations raise it.
        """
        said = [f"The replicas' batches are out of step: {BROKEN}"]
        with tf.device("CPU:0"):  # a GPU would first have to finish what it was given
            up = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.bool)
            if tf.executing_eagerly():
                tf.debugging.Assert(~up, said)
                return self._set(True)
            # In a graph `tf.debugging.Assert` puts a conditional around it, which each step runs.
            with tf.control_dependencies([tf.raw_ops.Assert(condition=~up, data=said)]):
                return self._set(True)

    def end(self, value: tf.Tensor) -> tf.Tensor:
        """Returns `value`, and takes the flag down: all devices have what they asked for."""
        with tf.control_dependencies([value]), tf.control_dependencies(self._set(False)):
            return tf.identity(value)

    def _set(self, up: bool) -> list[tf.Operation]:
        with tf.device("CPU:0"):
            done = tf.raw_ops.AssignVariableOp(resource=self.handle, value=up)
        return [] if done is None else [done]


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
