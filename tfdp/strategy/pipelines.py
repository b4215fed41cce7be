"""Pipelines under the strategy: each replica gets its share, and what the steps take is counted."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.data import Pipeline
from tfdp.data.counting import Clock, Counter, explained
from tfdp.keras_adapter import cut
from tfdp.strategy import input_batches
from tfdp.strategy.share_iterators import (
    ShareDataset,
    ShareDatasetSpec,
    ShareIterator,
    ShareIteratorSpec,
)


def distribute(
    pipeline: Pipeline,
    input_workers: Any,
    strategy: tf.distribute.Strategy,
    shares: tf.data.Dataset,
    options: Any,
) -> DistributedPipeline:
    """The pipeline as `experimental_distribute_dataset` returns it.

    Args:
      pipeline: What is distributed.
      input_workers: TensorFlow's description of where it is read.
      strategy: Whose replicas get the shares.
      shares: Those of the process' own replicas, in turn, as `Pipeline.cuts` gives them.
      options: `tf.distribute.InputOptions` or None.
    """
    counter = pipeline.batch_counter
    distributed = DistributedPipeline(
        input_workers, strategy, counter.mark(shares), options=options
    )
    distributed.counter = counter  # lives as long
    distributed._cardinality = pipeline.cardinality().numpy()
    # Each batch has a share for every replica: no step need ask who has one left.
    distributed._enable_get_next_as_optional = False
    return distributed


class DistributedPipeline(ShareDataset):
    """Makes iterators that count; in a graph too."""

    counter: Counter | None = None

    def __iter__(self) -> ShareIterator:
        iterator = super().__iter__()
        iterator.counter = self.counter
        return iterator

    def _share_spec(self, spec: Any) -> Any:
        several = self._strategy.extended.num_replicas > 1
        return spec[0][0] if several else spec[0]

    @property
    def _iterator_class(self) -> type[ShareIterator]:
        return PipelineIterator

    @property
    def _spec_class(self) -> type[ShareDatasetSpec]:
        return DistributedPipelineSpec


class DistributedPipelineSpec(ShareDatasetSpec):
    """What a traced function knows of a distributed pipeline."""

    @property
    def value_type(self) -> type[ShareDataset]:
        """The class."""
        return DistributedPipeline


class PipelineIterator(ShareIterator):
    """Counts each batch that is taken, in a graph too, and the seconds until it is there."""

    counter: Counter | None = None

    @contextlib.contextmanager
    def _watching(self) -> Iterator[Callable[[Sequence[Any]], None]]:
        with explained(self.counter), Clock() as clock:
            yield lambda elements: clock.take(elements[0][1])

    def _cut_of(self, element: Any) -> cut.Cut:
        share, _ = element
        if self._strategy.extended.num_replicas > 1:
            kind = cut.FullCut if input_batches.are_even(self._element_spec[0][0]) else cut.Cut
            return kind(*share)
        return cut.FullCut(share, input_batches.whole_place(share))

    @functools.cached_property
    def cuts(self) -> ShareIterator:
        """The same, giving a `Cut` for each share."""
        return PipelineCutIterator.over(self)

    @property
    def _spec_class(self) -> type[ShareIteratorSpec]:
        return PipelineIteratorSpec


class PipelineIteratorSpec(ShareIteratorSpec):
    """What a traced function knows of such an iterator."""

    @property
    def value_type(self) -> type[ShareIterator]:
        """The class."""
        return PipelineIterator


class PipelineCutIterator(PipelineIterator):
    """Gives each replica its `Cut`."""

    def _given(self, share: cut.Cut) -> cut.Cut:
        return share

    @property
    def _spec_class(self) -> type[ShareIteratorSpec]:
        return PipelineCutIteratorSpec


class PipelineCutIteratorSpec(ShareIteratorSpec):
    """What a traced function knows of such an iterator."""

    @property
    def value_type(self) -> type[ShareIterator]:
        """The class."""
        return PipelineCutIterator
