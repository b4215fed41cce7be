"""The hooks of Keras' trainer that build without a batch, cut global batches and wrap each step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp import recording
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    LOSS_OF_KERAS,
    STEPS_OF_KERAS,
    ArrayDataAdapter,
    TensorFlowTrainer,
    Trainer,
    distributed_dataset,
    flatten_layers,
    strategy_of_model,
    trainer,
)
from tfdp.keras_adapter._tensorflow import PerReplicaSpec, value_specs
from tfdp.keras_adapter.gradients.windows import Windows, check_waiting
from tfdp.keras_adapter.layers import recurrent
from tfdp.keras_adapter.metrics import batch_metrics
from tfdp.keras_adapter.step import current
from tfdp.keras_adapter.training import (
    compiling,
    cut,
    one_program,
    predictions,
    scopes,
    step_recording,
)
from tfdp.keras_adapter.training.sharing import place_in_batch, sharing
from tfdp.keras_adapter.variables.apart import check_round_ended
from tfdp.keras_adapter.variables.statistics import end_written, warn_of_undeclared
from tfdp.replicas import Cut, cutter_of, replicas_of


@hook(TensorFlowTrainer, "_make_function")
def make_function(
    original: Callable[..., Any], self: Any, step_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes the function for `fit` and `evaluate`, in which each replica's step knows its share."""
    strategy = self.distribute_strategy
    replicas = replicas_of(strategy)
    if replicas is None:
        return original(self, step_function)
    scopes.check_made_in_scope(self, strategy, replicas)
    if one_program.is_chosen(strategy):
        return one_program.made(original, self, step_function)
    trains = step_function == self.train_step
    recorder = recording.Recorder.of(self) if trains else None
    with compiling.forward_only(self):
        run = original(self, _with_share(self, step_function, recorder))

    counts = trains and _counts_without_a_batch(self)

    def function(iterator: Any) -> Any:
        if not trains:
            check_round_ended(self.variables, "evaluate")
        with replicas.processes.explained(), cut.explained(strategy):
            try:
                result = run(_cut(strategy, iterator))
            except tf.errors.OutOfRangeError:
                if counts:
                    self.optimizer.iterations.assign_add(1)
                raise
        if trains:
            compiling.say_if_nothing_was_compiled(self)
        return result

    function.recorder = recorder  # type: ignore[attr-defined]
    return function


@hook(TensorFlowTrainer, "make_predict_function")
def make_predict_function(original: Callable[..., Any], self: Any, force: bool = False) -> None:
    """Makes the function for `predict`, which cuts batches that come whole."""
    strategy = self.distribute_strategy
    replicas = replicas_of(strategy)
    if replicas is None or (self.predict_function is not None and not force):
        return original(self, force)
    scopes.check_made_in_scope(self, strategy, replicas)
    if one_program.is_chosen(strategy):
        one_program.make_predict_function(original, self)
        return None
    place_in_batch(strategy)
    predicting = predictions.Predicting(self)
    with compiling.forward_only(self):
        original(predicting, force=True)
    run = predicting.predict_function

    def function(batches: Any) -> Any:
        check_round_ended(self.variables, "predict")
        with replicas.processes.explained(), cut.explained(strategy):
            return run(list(_cut(strategy, batches)))

    self.predict_function = function
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
    replicas = replicas_of(strategy)
    if replicas is None:
        return original(self, iterator, data_batch)
    if replicas.num_replicas > 1:
        recurrent.check_states(self)
    if iterator is not None:
        spec = distributed_dataset(iterator).element_spec
        data_batch = tf.nest.map_structure(_one_replica, spec)
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
    scopes.check_compiled_in_scope(self)
    strategy: Any = getattr(self, "_distribute_strategy", None)
    compiling.note_asked(self, kwargs.get("jit_compile"))
    if replicas_of(strategy) is None or tf.distribute.has_strategy():
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


@hook(trainer, "reduce_per_replica")
def reduce_per_replica(
    original: Callable[..., Any], values: Any, strategy: Any, reduction: str
) -> Any:
    """Joins the outputs of `predict` over all processes; takes the first replica's logs."""
    replicas = replicas_of(strategy)
    if replicas is None:
        return original(values, strategy, reduction)
    if reduction == "concat" and replicas.processes.world_size > 1:
        # In one process Keras itself joins the replicas' rows.
        return tf.nest.map_structure(replicas.gather_rows, values)
    # Logs are the same on all replicas. Their mean could differ from them in the last bit.
    return original(values, strategy, "first" if reduction == "auto" else reduction)


def _counts_without_a_batch(model: Any) -> bool:
    """Returns whether Keras counts a step that finds data of unknown length at its end.

    On one device Keras does: adding to `iterations` needs no batch, and so is done before the step
    fails. It does not if the gradients decide whether there is a step. Replicas wait for the batch
    before they count, so that all count or none; the caller then adds the one step.
    """
    optimizer = getattr(model, "optimizer", None)
    conditional = keras.optimizers.LossScaleOptimizer
    if optimizer is None or isinstance(optimizer, conditional) or model.run_eagerly:
        return False
    return not optimizer.gradient_accumulation_steps


def _with_share(
    model: Any, step_function: Callable[..., Any], recorder: recording.Recorder | None
) -> Callable[..., Any]:
    custom_loss = model.distribute_strategy.custom_loss
    windows = Windows(model)
    of_keras = _is_of_keras(model, step_function)
    place_in_batch(model.distribute_strategy)  # outside of what is traced

    @tf.autograph.experimental.do_not_convert
    def run(data: Any) -> Any:
        step = current()
        if step is None:
            return step_function(data)
        with (
            step_recording.step(recorder, step.trace, model, data),
            sharing(step, data, custom_loss, windows, of_any_length=True) as (rows, total),
        ):
            step_recording.examples(total)
            step.of_keras = of_keras
            step.compiles = compiling.asked(model)
            with step.asking_for_all(model.metrics):
                logs = step_function(rows)
                check_waiting(step)
                warn_of_undeclared(step, model)
                end_written(step)
                logs = batch_metrics.same_on_all(step, logs)
        return logs

    return run


def _is_of_keras(model: Any, step_function: Callable[..., Any]) -> bool:
    """Returns whether a step, and how it computes its loss, are Keras' own code."""
    computes_loss = getattr(model.compute_loss, "__func__", None)
    return (
        getattr(step_function, "__func__", None) in STEPS_OF_KERAS
        and computes_loss is LOSS_OF_KERAS
    )


def _one_replica(spec: Any) -> Any:
    spec = value_specs(spec)[0] if isinstance(spec, PerReplicaSpec) else spec
    return None if isinstance(spec, tf.OptionalSpec) else spec


def _cut(strategy: Any, iterator: Any) -> Iterable[Any]:
    """Returns an iterable of shares; whole batches, as from `train_on_batch`, are cut."""
    if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return cutter_of(strategy).cuts(iterator)

    def shares() -> Iterator[Any]:
        for batch in iterator:
            leaves = tf.nest.flatten(batch)
            distributed = any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in leaves)
            if distributed or isinstance(batch, Cut):
                yield batch
            else:
                yield cutter_of(strategy).split_for_step(batch)

    return shares()
