"""What a trace of `predict` knows of shares: the same in all processes.

Keras takes the shares of a batch before it calls its function, which TensorFlow traces for what is
known of their shapes, and once more for others, of which it then knows less. Replicas have other
numbers of rows in each process. Processes of which one knew more would run different programs, and
wait for each other.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import BatchShard, FullBatchShard, TurnBatchShard
from tfdp.keras._tensorflow import PerReplica, PerReplicaSpec, value_specs


def known_alike(share: Any, element_spec: Any) -> Any:
    """Returns shares of which a trace does not know their numbers of rows.

    Nor does it know other sizes but those that the data declare where each replica reads its own
    examples.

    Args:
      share: A `BatchShard` of all local replicas, or what is no batch.
      element_spec: The specification of the data.
    """
    if not isinstance(share, BatchShard) or isinstance(share, FullBatchShard):
        return share
    leaves = tf.nest.flatten(share.rows)
    declared = (
        tf.nest.flatten(element_spec)
        if isinstance(share, TurnBatchShard)
        else itertools.repeat(None)
    )
    found = [_known_alike(leaf, spec) for leaf, spec in zip(leaves, declared, strict=False)]
    return share._replace(rows=tf.nest.pack_sequence_as(share.rows, found))


def _known_alike(leaf: Any, declared: Any) -> Any:
    if not isinstance(leaf, PerReplica):
        return leaf
    specs = [tf.type_spec_from_value(value) for value in leaf.values]
    if declared is not None:
        is_of_each = isinstance(declared, PerReplicaSpec)
        specs = value_specs(declared) if is_of_each else [declared] * len(specs)
    return _Known(leaf.values, [_of_any_length(spec) for spec in specs])


class _Known(PerReplica):
    """The replicas' shares of a tensor, of which a trace knows what specifications say."""

    def __init__(self, values: Sequence[Any], specs: Sequence[tf.TypeSpec]) -> None:
        super().__init__(values)
        self._specs = specs

    def __tf_tracing_type__(self, context: Any) -> Any:
        return PerReplicaSpec(*self._specs).__tf_tracing_type__(context)


def _of_any_length(spec: Any) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec)) and spec.shape.rank:
        return type(spec)([None, *spec.shape[1:]], spec.dtype)
    return spec
