"""Iterators over the replicas' shares: those of one batch for all replicas, or one error.

TensorFlow's iterator asks for the share of each device by itself. Where the dataset fails, one
device gets the error and the others what comes after it: the next share, or the end, which would
be taken for the end of the data.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter import cut
from tfdp.strategy import input_batches
from tfdp.strategy._tensorflow import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
    regroup,
)
from tfdp.strategy.fetching import BROKEN, Fetching

_BROKEN = (
    "The replicas must get the shares of one batch, but these shares belong to several: " + BROKEN
)


class ShareDataset(DistributedDataset):
    """Of elements (a replica's share, its `Cut.place`); its iterators give the shares.

    In an element a share without examples holds a stand-in, a row of the batch.
    """

    def __iter__(self) -> ShareIterator:
        return self._iterator_class.over(super().__iter__())

    @property
    def _iterator_class(self) -> type[ShareIterator]:
        return ShareIterator

    @property
    def element_spec(self) -> Any:
        """Of the shares."""
        return self._share_spec(self._element_spec)

    def _share_spec(self, spec: Any) -> Any:
        return spec[0]

    @property
    def _spec_class(self) -> type[ShareDatasetSpec]:
        return ShareDatasetSpec

    @property
    def _type_spec(self) -> ShareDatasetSpec:
        return self._spec_class(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
        )


class ShareDatasetSpec(DistributedDatasetSpec):
    """What a traced function knows of a dataset of shares."""

    @property
    def value_type(self) -> type[ShareDataset]:
        """The class."""
        return ShareDataset

    def _from_components(self, components: Any) -> ShareDataset:
        return self.value_type(
            input_workers=self._input_workers,
            strategy=self._strategy,
            components=components,
            element_spec=self._element_spec,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
            options=self._options,
            replica_order=self._replica_order,
        )


class ShareIterator(DistributedIterator):
    """Gives each replica its share of the next batch; see the module."""

    _fetching: Fetching

    @classmethod
    def over(cls, iterator: DistributedIterator) -> ShareIterator:
        """Of this class, over what another fetches."""
        known = getattr(iterator, "_fetching", None)
        return cls._made(
            known or Fetching.made(),
            input_workers=iterator._input_workers,
            components=iterator._iterators,
            element_spec=iterator._element_spec,
            strategy=iterator._strategy,
            cardinality=iterator._cardinality,
            enable_get_next_as_optional=iterator._enable_get_next_as_optional,
            options=iterator._options,
            replica_order=iterator._replica_order,
        )

    @classmethod
    def _made(cls, fetching: Fetching, **parts: Any) -> ShareIterator:
        iterator = cls(**parts)
        iterator._fetching = fetching
        return iterator

    @functools.cached_property
    def cuts(self) -> ShareIterator:
        """The same, giving a `Cut` for each share."""
        return CutIterator.over(self)

    def get_next(self, name: str | None = None) -> Any:
        """The shares of the next batch.

        Raises:
          tf.errors.OutOfRangeError: There is none.
          tf.errors.OpError: Whatever went wrong in the dataset.
          RankMismatchError: The data of some ranks ended before those of others; in a graph an
            `InvalidArgumentError` says so.
        """
        with self._watching() as took, cut.explained(self._strategy):
            if tf.executing_eagerly() and not self._must_agree:
                # One device after the other: what is raised first is what went wrong.
                elements = self._next_elements()
                self._check(elements)
            else:
                optionals = self._next_optionals()
                with tf.control_dependencies([self._all_or_end(optionals)]):
                    elements = self._values(optionals)
            took(elements)
        return self._regrouped(elements)

    def get_next_as_optional(self) -> Any:
        """The shares of the next batch, or none."""
        with self._watching() as took:
            optionals = self._next_optionals()

            def shares() -> Any:
                with tf.control_dependencies([self._check(self._values(optionals))]):
                    elements = self._values(optionals)
                took(elements)
                return tf.experimental.Optional.from_value(self._regrouped(elements))

            return tf.cond(
                self._has_next(optionals),
                shares,
                lambda: tf.experimental.Optional.empty(self.element_spec),
            )

    @property
    def element_spec(self) -> Any:
        """Of what is given."""
        return self._given(self._cut_of(self._element_spec))

    @property
    def _type_spec(self) -> ShareIteratorSpec:
        return self._spec_class(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            self._cardinality,
            self._enable_get_next_as_optional,
            self._replica_order,
        )

    @property
    def _spec_class(self) -> type[ShareIteratorSpec]:
        return ShareIteratorSpec

    def _given(self, share: cut.Cut) -> Any:
        """What is given of a share, or of its spec: of one without examples no row."""
        if isinstance(share, cut.FullCut) or not tf.is_tensor(share.place):
            return share.rows
        return tf.nest.map_structure(
            lambda leaf: input_batches.first_rows(leaf, share.place[1]), share.rows
        )

    def _watching(self) -> contextlib.AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Around what fetches a batch: gives what is to be told of its elements."""
        return contextlib.nullcontext(lambda elements: None)

    # ---- one batch

    @property
    def _worker(self) -> Any:
        """TensorFlow's iterator of this process."""
        return self._iterators[0]

    @property
    def _must_agree(self) -> bool:
        """Whether the ranks must ask each other for the end of the data."""
        extended = self._strategy.extended
        return extended.in_cluster and self._enable_get_next_as_optional

    def _next_elements(self) -> list[Any]:
        self._fetching.begin()
        try:
            elements: list[Any] = self._worker.get_next_as_list()
        except tf.errors.OutOfRangeError:
            self._fetching.end(tf.constant(False))
            raise
        self._fetching.end(tf.constant(True))
        return elements

    def _next_optionals(self) -> list[Any]:
        """What each device has next; whoever asks for it says when all of them have got it."""
        with tf.control_dependencies(self._fetching.begin()):
            optionals: list[Any] = self._worker.get_next_as_optional_list()
        return optionals

    def _values(self, optionals: Sequence[Any]) -> list[Any]:
        values = []
        for device, optional in zip(self._strategy.extended.worker_devices, optionals, strict=True):
            with tf.device(device):
                values.append(optional.get_value())
        return values

    def _regrouped(self, elements: Sequence[Any]) -> Any:
        extended = self._strategy.extended
        return regroup(
            [self._given(self._cut_of(element)) for element in elements],
            always_wrap=extended.in_cluster or len(elements) > 1,
        )

    def _has_next(self, optionals: Sequence[Any]) -> tf.Tensor:
        """Whether there is a batch; waits until it is known for all devices, and ranks."""
        with tf.device("CPU:0"):
            on_devices = tf.stack([optional.has_value() for optional in optionals])
            on_devices = self._fetching.end(on_devices)
            some = _all_or_none(on_devices, [_BROKEN])
            if not self._must_agree:
                return some
            on_ranks = self._strategy.extended.of_all_processes(tf.cast(some, tf.int32))
            return _all_or_none(on_ranks > 0, [cut.ENDED, on_ranks])

    def _all_or_end(self, optionals: Sequence[Any]) -> Any:
        """Raises where not all shares of one batch are there, OutOfRangeError where none is."""

        def end() -> tf.Tensor:
            with tf.control_dependencies(_tensors(self._worker.get_next_as_list())):
                return tf.constant(True)

        return tf.cond(self._has_next(optionals), lambda: self._check(self._values(optionals)), end)

    def _check(self, elements: Sequence[Any]) -> tf.Tensor:
        """Raises where the elements are not the shares of one batch."""
        places = [tf.identity(self._cut_of(element).place) for element in elements]
        first = self._strategy.extended.first_rank
        with tf.device("CPU:0"):
            ranks = tf.stack([place[0] for place in places])
            right = tf.reduce_all(ranks == tf.range(first, first + len(places), dtype=tf.int64))
            return _asserted(right, [_BROKEN], right)

    def _cut_of(self, element: Any) -> cut.Cut:
        """An element, or its spec, as a `Cut`."""
        kind = cut.FullCut if input_batches.are_even(self._element_spec[0]) else cut.Cut
        return kind(*element)


class CutIterator(ShareIterator):
    """Gives each replica its `Cut`."""

    def _given(self, share: cut.Cut) -> cut.Cut:
        return share

    @property
    def _spec_class(self) -> type[ShareIteratorSpec]:
        return CutIteratorSpec


class ShareIteratorSpec(DistributedIteratorSpec):
    """What a traced function knows of an iterator of shares."""

    @property
    def value_type(self) -> type[ShareIterator]:
        """The class."""
        return ShareIterator

    @property
    def _component_specs(self) -> list[Any]:
        return [*super()._component_specs, Fetching.spec]

    def _to_components(self, value: ShareIterator) -> list[Any]:
        return [*super()._to_components(value), value._fetching.handle]

    def _from_components(self, components: Any) -> ShareIterator:
        *iterators, handle = components
        return self.value_type._made(
            Fetching(handle),
            input_workers=self._input_workers,
            components=iterators,
            element_spec=self._element_spec,
            strategy=self._strategy,
            cardinality=self._cardinality,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
            options=self._options,
            replica_order=self._replica_order,
        )


class CutIteratorSpec(ShareIteratorSpec):
    """What a traced function knows of an iterator of `Cut`s."""

    @property
    def value_type(self) -> type[ShareIterator]:
        """The class."""
        return CutIterator


def _all_or_none(there: tf.Tensor, said: list[Any]) -> tf.Tensor:
    """Whether all are true; raises InvalidArgumentError with what is `said` where only some are."""
    some = tf.reduce_any(there)
    return _asserted(tf.reduce_all(there) | ~some, said, some)


def _asserted(condition: tf.Tensor, said: list[Any], value: tf.Tensor) -> tf.Tensor:
    """`value`, once the condition has been found to hold."""
    assertion = tf.debugging.Assert(condition, said, summarize=-1)
    with tf.control_dependencies([] if assertion is None else [assertion]):
        return tf.identity(value)


def _tensors(values: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(values, expand_composites=True)
