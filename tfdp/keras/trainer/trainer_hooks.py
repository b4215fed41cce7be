"""The hooks of Keras' trainer that build without a batch, and make steps one program."""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import compiler_of, is_of_tfdp, processes_of, replicas_of
from tfdp.keras import scope_errors
from tfdp.keras._keras import (
    ArrayDataAdapter,
    TensorFlowTrainer,
    Trainer,
    distributed_dataset,
    flatten_layers,
    loss,
    strategy_of_model,
)
from tfdp.keras._tensorflow import PerReplicaSpec, value_specs
from tfdp.keras.trainer import compiled_steps, partitioned_steps


@hook(TensorFlowTrainer, "_make_function")
def make_function(
    original: Callable[..., Any], self: Any, step_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes the function for `fit` and `evaluate`, whose step is one program of all replicas."""
    strategy = self.distribute_strategy
    if compiler_of(strategy) is not None:
        return compiled_steps.made(self, step_function)
    replicas = replicas_of(strategy)
    if replicas is None:
        return original(self, step_function)
    scope_errors.check_made_in_scope(self, strategy, replicas)
    return partitioned_steps.made(original, self, step_function)


@hook(TensorFlowTrainer, "make_predict_function")
def make_predict_function(original: Callable[..., Any], self: Any, force: bool = False) -> None:
    """Makes the function for `predict`, whose step is one program of all replicas."""
    strategy = self.distribute_strategy
    replicas = replicas_of(strategy)
    is_kept = self.predict_function is not None and not force
    if compiler_of(strategy) is not None and not is_kept:
        self.predict_function = compiled_steps.made_to_predict(self)
        return None
    if replicas is None or is_kept:
        return original(self, force)
    scope_errors.check_made_in_scope(self, strategy, replicas)
    partitioned_steps.make_predict_function(original, self)
    return None


@hook(TensorFlowTrainer, "_maybe_symbolic_build")
def maybe_symbolic_build(
    original: Callable[..., Any], self: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Builds the model from the shapes that the dataset declares, without reading a batch.

    A model that cannot be called with symbolic tensors is built by its first step, as on one
    device.
    """
    strategy: Any = strategy_of_model(self)
    if not is_of_tfdp(strategy):
        return original(self, iterator, data_batch)
    if iterator is not None:
        spec = distributed_dataset(iterator).element_spec
        alone = processes_of(strategy).world_size == 1
        data_batch = tf.nest.map_structure(lambda each: _of_batch(each, alone), spec)
    try:
        original(self, None, data_batch)
    except Exception as error:
        # A model may raise any error for symbolic tensors. If it is wrong, its first step shows it.
        logging.getLogger("tfdp").debug("The model is built by its first step.", exc_info=error)
        optimizer = self.optimizer
        all_built = all(layer.built for layer in flatten_layers(self))
        if optimizer is not None and not optimizer.built and all_built and self.trainable_variables:
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)


@hook(Trainer, "compile")
def compile_(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compiles a model in its own scope, where the objects that `compile` makes belong."""
    scope_errors.check_compiled_in_scope(self)
    strategy: Any = getattr(self, "_distribute_strategy", None)
    if not is_of_tfdp(strategy) or tf.distribute.has_strategy():
        return original(self, *args, **kwargs)
    with strategy.scope():
        return original(self, *args, **kwargs)


@hook(ArrayDataAdapter, "get_tf_dataset")
def get_tf_dataset(original: Callable[..., Any], self: ArrayDataAdapter) -> tf.data.Dataset:
    """Gives the dataset of arrays its number of batches; processes need not agree on its end."""
    dataset = original(self)
    if dataset.cardinality() != tf.data.UNKNOWN_CARDINALITY:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(self.num_batches))


def _of_batch(spec: Any, alone: bool) -> Any:
    """Returns the specification of a whole batch's leaf, given that of its shares.

    Args:
      spec: That of the shares; or of what no replica has a share of.
      alone: Whether this process has all shares. Else the batch's length is taken for unknown.
    """
    if not isinstance(spec, PerReplicaSpec):
        return None if isinstance(spec, tf.OptionalSpec) else spec
    first, *others = value_specs(spec)
    if not isinstance(first, tf.TensorSpec) or not first.shape.rank:
        return None if isinstance(first, tf.OptionalSpec) else first
    lengths = [each.shape[0] for each in (first, *others)]
    length = sum(lengths) if alone and None not in lengths else None
    return tf.TensorSpec([length, *first.shape[1:]], first.dtype)


@hook(loss, "scale_loss_for_distribution")
def scale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a mean loss as it is, in the scope of a strategy of tfdp and outside of replicas."""
    return value if _is_of_one_device() else original(value)


@hook(loss, "unscale_loss_for_distribution")
def unscale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a loss for a metric as it is, where it was left so."""
    return value if _is_of_one_device() else original(value)


def _is_of_one_device() -> bool:
    in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    return is_of_tfdp(tf.distribute.get_strategy()) and not in_replica
