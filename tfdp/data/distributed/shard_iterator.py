"""Iterators over the replicas' shares, which give the shares of one batch, or raise one error.

TensorFlow's iterator asks for the share of each device by itself. If the dataset fails, one device
gets the error, and the others get what comes after it: the next share, or the end, which would be
taken for the end of the data.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import tensorflow as tf

from tfdp.communication.replicas import BatchShard, FullBatchShard, batch_shard, data_mismatch
from tfdp.data.distributed import batch_sharding
from tfdp.data.distributed._tensorflow import (
    DistributedIterator,
    DistributedIteratorSpec,
    regroup,
)
from tfdp.data.distributed.batch_check import BatchCheck
from tfdp.data.feed import AbstractFeed
from tfdp.data.tally import BROKEN, HANDLE_SPEC, Clock, Fetching, Tally, explained

_BROKEN = (
    "The replicas must get the shares of one batch, but these shares belong to several: " + BROKEN
)


# What counts the elements of a feed, or compares others where other ranks read them too.
Counter = Tally | BatchCheck | None


class Counted(NamedTuple):
    """An element of a feed, which iterators count.

    It marks the element's spec as well, so that traced functions know which elements to count.
    """

    element: Any


class ShardIterator(DistributedIterator):
    """Gives each replica its share of the next batch or its `BatchShard`, or raises one error."""

    def __init__(
        self,
        fetching: Fetching | None = None,
        counter: Counter = None,
        feed: AbstractFeed | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self._fetching = fetching or Fetching.made()
        self._counter, self._feed = counter, feed

    @classmethod
    def over(cls, iterator: DistributedIterator, **parts: Any) -> Self:
        """Makes an iterator of this class over the elements that another one fetches.

        Args:
          iterator: The other iterator; if it is one of shares, both count together.
          parts: The parts that differ from the other's: `counter`, `feed`, `element_spec`.
        """
        shared = {
            name: getattr(iterator, f"_{name}", None) for name in ("fetching", "counter", "feed")
        }
        return cls(**{**_described(iterator), "components": iterator._iterators, **shared, **parts})

    @functools.cached_property
    def shards(self) -> ShardIterator:
        """An iterator over the same elements that gives a `BatchShard` for each share.

        One replica's elements are batches, and stay so.
        """
        spec = self._element_spec
        if self._strategy.extended.num_replicas == 1:
            return self
        shards: Any = BatchShard(*element_of(spec))
        return self.over(
            self, element_spec=Counted(shards) if isinstance(spec, Counted) else shards
        )

    def get_next(self, name: str | None = None) -> Any:
        """Returns the shares of the next batch.

        Raises:
          tf.errors.OutOfRangeError: There is no batch left.
          tf.errors.OpError: The dataset raised an error.
          RankMismatchError: The data of some ranks ended before that of others, or are others; in
            a graph an `InvalidArgumentError` says so.
        """
        with (
            explained(self._feed),
            self._clock() as clock,
            data_mismatch.explained(self._strategy.rank),
        ):
            if tf.executing_eagerly() and not self._must_agree:
                # The devices fetch one after the other, so the first error is the cause.
                elements = self._next_elements()
                self._check(elements)
            elif len(self._strategy.extended.worker_devices) == 1 and not self._must_agree:
                elements = [self._only_element()]
            else:
                optionals = self._next_optionals()
                with tf.control_dependencies([self._all_or_end(optionals)]):
                    elements = self._values(optionals)
            self._count(clock, elements)
        return self._regrouped(elements)

    def get_next_as_optional(self) -> Any:
        """Returns the shares of the next batch, or an empty optional."""
        with explained(self._feed), self._clock() as clock:
            optionals = self._next_optionals()

            def shares() -> Any:
                with tf.control_dependencies([self._check(self._values(optionals))]):
                    elements = self._values(optionals)
                self._count(clock, elements)
                return tf.experimental.Optional.from_value(self._regrouped(elements))

            return tf.cond(
                self._has_next(optionals),
                shares,
                lambda: tf.experimental.Optional.empty(self.element_spec),
            )

    @property
    def element_spec(self) -> Any:
        """The spec of the elements that are given."""
        return self._given(self._shard_of(self._element_spec))

    @functools.cached_property
    def _type_spec(self) -> ShardIteratorSpec:
        # TensorFlow asks for it in every step, and to make it takes a good part of a small one.
        return self._spec_class(**_described(self))

    @property
    def _spec_class(self) -> type[ShardIteratorSpec]:
        return ShardIteratorSpec

    def _given(self, share: Any) -> Any:
        """Returns what a replica is given for a share, or its spec; no row where it is empty."""
        if not isinstance(share, BatchShard) or isinstance(
            element_of(self._element_spec), BatchShard
        ):
            return share
        if isinstance(share, FullBatchShard) or not tf.is_tensor(share.place):
            return share.rows
        return batch_sharding.without_padding_rows(share, self._strategy.extended.num_replicas)

    def _clock(self) -> contextlib.AbstractContextManager[Clock | None]:
        """Returns the clock that times the wait for a batch, if anybody wants to know."""
        return Clock() if isinstance(self._counter, Tally) else contextlib.nullcontext()

    def _count(self, clock: Clock | None, elements: Sequence[Any]) -> None:
        """Counts the batch whose shares are the elements, if a feed gives them, or compares it.

        Steps of Keras compare theirs, which are `BatchShard`s.
        """
        if isinstance(self._counter, Tally) and clock is not None:
            self._counter.add(clock.seconds_until(elements[0]))
        elif isinstance(self._counter, BatchCheck) and not isinstance(
            self._element_spec, BatchShard
        ):
            with tf.device(self._strategy.extended.worker_devices[0]):
                first = self._shard_of(elements[0])
            self._counter.add(self._strategy.extended, first)

    # ---- one batch

    @property
    def _worker(self) -> Any:
        """TensorFlow's iterator of this process; the first, where each replica has its own."""
        return self._iterators[0]

    @property
    def _must_agree(self) -> bool:
        """Whether the ranks must ask each other for the end of the data."""
        extended = self._strategy.extended
        return extended.in_cluster and self._enable_get_next_as_optional

    def _of_devices(self, fetch: Callable[[Any], list[Any]]) -> list[Any]:
        """Fetches for each device: at once, or one after the other from one plain iterator."""
        fetched: list[Any] = []
        while len(fetched) < len(self._strategy.extended.worker_devices):
            for iterator in self._iterators:
                fetched += fetch(iterator)
        return fetched

    def _next_elements(self) -> list[Any]:
        self._fetching.begin()
        try:
            elements = self._of_devices(lambda iterator: iterator.get_next_as_list())
        except tf.errors.OutOfRangeError:
            self._fetching.end(tf.constant(False))
            raise
        self._fetching.end(tf.constant(True))
        return elements

    def _only_element(self) -> Any:
        """Fetches in a graph for the process' only device, whose share cannot miss others."""
        (optional,) = self._next_optionals()
        there = self._fetching.end(optional.has_value())
        with tf.control_dependencies([tf.cond(there, _true, self._end)]):
            return optional.get_value()

    def _next_optionals(self) -> list[Any]:
        """Fetches an optional for each device; the caller must `end` the fetching thereafter."""
        with tf.control_dependencies(self._fetching.begin()):
            return self._of_devices(lambda iterator: iterator.get_next_as_optional_list())

    def _values(self, optionals: Sequence[Any]) -> list[Any]:
        values = []
        for device, optional in zip(self._strategy.extended.worker_devices, optionals, strict=True):
            with tf.device(device):
                values.append(optional.get_value())
        return values

    def _regrouped(self, elements: Sequence[Any]) -> Any:
        extended = self._strategy.extended
        given = [self._given(shard) for shard in self._shards_of(elements)]
        if tf.executing_eagerly():
            given = list(map(_on, extended.worker_devices, given))
        return regroup(given, always_wrap=extended.in_cluster or len(elements) > 1)

    def _has_next(self, optionals: Sequence[Any]) -> tf.Tensor:
        """Returns whether there is a batch, once all devices and ranks know it."""
        with tf.device("CPU:0"):
            on_devices = tf.stack([optional.has_value() for optional in optionals])
            on_devices = self._fetching.end(on_devices)
            some = _all_or_none(on_devices, [_BROKEN])
            if not self._must_agree:
                return some
            own = tf.cast(some, tf.int32)[tf.newaxis]
            on_ranks = tf.cast(self._strategy.extended.of_all_processes(own), tf.int64)
            with tf.control_dependencies(data_mismatch.checks(on_ranks, [data_mismatch.ENDED])):
                return tf.identity(some)

    def _all_or_end(self, optionals: Sequence[Any]) -> Any:
        """Raises unless all shares of a batch are there; OutOfRangeError if none is."""
        return tf.cond(
            self._has_next(optionals), lambda: self._check(self._values(optionals)), self._end
        )

    def _end(self) -> tf.Tensor:
        """Raises OutOfRangeError in a graph, where the worker's iterator is at its end."""
        with tf.control_dependencies(_tensors(self._worker.get_next_as_list())):
            return _true()

    def _check(self, elements: Sequence[Any]) -> tf.Tensor:
        """Raises unless the elements are the shares of one batch."""
        if self._strategy.extended.num_replicas == 1:
            return _true()
        first = self._strategy.extended.first_rank
        with tf.device("CPU:0"):
            places = [tf.identity(shard.place) for shard in self._shards_of(elements)]
            ranks = tf.stack([place[0] for place in places])
            right = tf.reduce_all(ranks == tf.range(first, first + len(places), dtype=tf.int64))
            return _asserted(right, [_BROKEN], right)

    def _shards_of(self, elements: Sequence[Any]) -> list[Any]:
        """Returns what `_shard_of` makes of the elements of all devices."""
        shards = []
        for device, element in zip(self._strategy.extended.worker_devices, elements, strict=True):
            with tf.device(device):
                shards.append(self._shard_of(element))
        return shards

    def _shard_of(self, element: Any) -> Any:
        """Returns an element, or its spec, as a `BatchShard`; one replica's is the batch."""
        element = element_of(element)
        if self._strategy.extended.num_replicas == 1:
            return element
        rows_spec = element_of(self._element_spec)[0]
        kind = FullBatchShard if batch_sharding.are_even(rows_spec) else BatchShard
        rows, place, *known = element
        return kind(rows, batch_sharding.of_each_replica(batch_shard.read_place, place), *known)


class ShardIteratorSpec(DistributedIteratorSpec):
    """The spec of an iterator of shares, which a traced function knows it by."""

    @property
    def value_type(self) -> type[ShardIterator]:
        """The class that the spec describes."""
        return ShardIterator

    @functools.cached_property
    def _component_specs(self) -> list[Any]:
        return [*super()._component_specs, HANDLE_SPEC, *self._counter_specs]

    @property
    def _counter_specs(self) -> list[tf.TensorSpec]:
        return counter_specs(self._element_spec, self._strategy)

    def _to_components(self, value: ShardIterator) -> list[Any]:
        own = [value._fetching.handle, *handles_of(value._counter)]
        return [*super()._to_components(value), *own]

    def _from_components(self, components: Any) -> ShardIterator:
        workers = len(super()._component_specs)
        fetching, *others = components[workers:]
        return self.value_type(
            Fetching(fetching),
            counter_of(others, self._element_spec),
            components=components[:workers],
            **_described(self),
        )


def plain_iterator(iterator: DistributedIterator) -> Any:
    """Returns the iterator of `tf.data` that is all of another one, or the other one.

    To describe TensorFlow's own to a graph takes as long as a small step.
    """
    inner = getattr(iterator._iterators[0], "_iterator", None)
    return inner if isinstance(inner, tf.data.Iterator) else iterator


def element_of(element: Any) -> Any:
    """Returns an element, or its spec, without the mark that it is `Counted`."""
    return element.element if isinstance(element, Counted) else element


def counter_specs(element_spec: Any, strategy: Any) -> list[tf.TensorSpec]:
    """Returns the spec of the handle of what counts elements, or compares them, if anything does.

    Elements of a feed are counted; others are compared where other ranks read them too.
    """
    counts = isinstance(element_spec, Counted) or strategy.extended.in_cluster
    return [HANDLE_SPEC] if counts else []


def handles_of(counter: Counter) -> list[tf.Tensor]:
    """Returns the handle of what counts elements, or compares them, if anything does."""
    return [] if counter is None else [counter.handle]


def counter_of(handles: Sequence[tf.Tensor], element_spec: Any) -> Counter:
    """Returns what has the handle that `handles_of` gave."""
    kind = Tally if isinstance(element_spec, Counted) else BatchCheck
    return kind(*handles) if handles else None


def _described(source: Any) -> dict[str, Any]:
    """Returns, by name, the parts that both an iterator and its spec are made from."""
    return {
        "input_workers": source._input_workers,
        "element_spec": source._element_spec,
        "strategy": source._strategy,
        "options": source._options,
        "cardinality": source._cardinality,
        "enable_get_next_as_optional": source._enable_get_next_as_optional,
        "replica_order": source._replica_order,
    }


def _all_or_none(there: tf.Tensor, said: list[Any]) -> tf.Tensor:
    """Returns whether all are true; raises InvalidArgumentError with `said` if only some are."""
    some = tf.reduce_any(there)
    return _asserted(tf.reduce_all(there) | ~some, said, some)


def _asserted(condition: tf.Tensor, said: list[Any], value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, once the condition has been found to hold."""
    assertion = tf.debugging.Assert(condition, said, summarize=-1)
    with tf.control_dependencies([] if assertion is None else [assertion]):
        return tf.identity(value)


def _on(device: str, element: Any) -> Any:
    """Returns what a replica is given on its device; it may be where one iterator reads for all."""
    with tf.device(device):
        return tf.nest.map_structure(
            lambda leaf: leaf if leaf.device == device else tf.identity(leaf),
            element,
            expand_composites=True,
        )


def _true() -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(True)


def _tensors(values: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(values, expand_composites=True)
