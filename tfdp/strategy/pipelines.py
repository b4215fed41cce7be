"""Pipelines under the strategy: each replica gets its share, and what the steps take is counted."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp.data import Pipeline
from tfdp.data.counting import Clock, Counter, explained, take_optional
from tfdp.strategy._tensorflow import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
    DistributedValues,
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
      shares: Those of the process' own replicas, in turn.
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


class DistributedPipeline(DistributedDataset):
    """Makes iterators that count; in a graph too."""

    counter: Counter | None = None

    def __iter__(self) -> PipelineIterator:
        iterator = super().__iter__()
        counting = PipelineIterator(
            iterator._input_workers,
            iterator._iterators,
            iterator._strategy,
            cardinality=iterator._cardinality,
            enable_get_next_as_optional=iterator._enable_get_next_as_optional,
            options=iterator._options,
            replica_order=iterator._replica_order,
        )
        counting._element_spec = iterator._element_spec
        counting.counter = self.counter
        return counting

    @property
    def element_spec(self) -> Any:
        """Of the shares."""
        return super().element_spec[0]

    @property
    def _type_spec(self) -> DistributedPipelineSpec:
        return DistributedPipelineSpec(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
        )


class DistributedPipelineSpec(DistributedDatasetSpec):
    """What a traced function knows of a distributed pipeline."""

    @property
    def value_type(self) -> type:
        """The class."""
        return DistributedPipeline

    def _from_components(self, components: Any) -> DistributedPipeline:
        return DistributedPipeline(
            input_workers=self._input_workers,
            strategy=self._strategy,
            components=components,
            element_spec=self._element_spec,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
            options=self._options,
            replica_order=self._replica_order,
        )


class PipelineIterator(DistributedIterator):
    """Counts each batch that is taken, in a graph too, and the seconds until it is there."""

    counter: Counter | None = None

    def get_next(self, name: str | None = None) -> Any:
        """The shares of one batch."""
        with explained(self.counter), Clock() as clock:
            share, number = super().get_next(name)
        clock.take(_first(number))
        return share if tf.executing_eagerly() else _all_or_none(share, number)

    def get_next_as_optional(self) -> Any:
        """The shares of one batch, or none."""
        return take_optional(super().get_next_as_optional, _first)

    @property
    def element_spec(self) -> Any:
        """Of the shares."""
        return super().element_spec[0]

    @property
    def _type_spec(self) -> PipelineIteratorSpec:
        return PipelineIteratorSpec(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            self._cardinality,
            self._enable_get_next_as_optional,
            self._replica_order,
        )


class PipelineIteratorSpec(DistributedIteratorSpec):
    """What a traced function knows of such an iterator."""

    @property
    def value_type(self) -> type:
        """The class."""
        return PipelineIterator

    def _from_components(self, components: Any) -> PipelineIterator:
        return PipelineIterator(
            input_workers=self._input_workers,
            components=components,
            element_spec=self._element_spec,
            strategy=self._strategy,
            cardinality=self._cardinality,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
            options=self._options,
            replica_order=self._replica_order,
        )


def _all_or_none(share: Any, number: Any) -> Any:
    """The replicas' shares, none of which is there before all are.

    Where one cannot be made, no replica then waits for it in a collective, which would abort.
    """
    with tf.control_dependencies(tf.nest.flatten(number, expand_composites=True)):
        return tf.nest.map_structure(_there, share, expand_composites=True)


def _there(tensor: tf.Tensor) -> tf.Tensor:
    with tf.device(tensor.device):
        return tf.identity(tensor)


def _first(number: Any) -> tf.Tensor:
    """One replica's."""
    return number.values[0] if isinstance(number, DistributedValues) else number
