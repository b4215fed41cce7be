"""One run: a network trained under `tfdp.DataParallelStrategy`, on CPU devices or in processes."""

import math
import time

import keras
import numpy as np
import tensorflow as tf

import tfdp
from benchmarks.convergence.models import build_model
from benchmarks.convergence.recipes import make_optimizer
from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.splits import Splits
from benchmarks.sending import arguments_of
from tfdp.base.recording import Recorder

_EVALUATION_BATCH = 1_000


def train(run: Run, splits: Splits) -> Outcome:
    """Trains, and evaluates on the validation split after each epoch and on the test split.

    A step takes `run.step_batch` examples, an equal share on each replica, and the weights change
    after `run.gradient_accumulation_steps` steps. Each epoch has another order, and leaves out the
    examples that fill no step. A run whose loss is infinite or not a number ends with that epoch.

    Ranks that train apart take the parts of all batches in turn, each of them once, and are
    evaluated with the weights on which all of them end.
    """
    inputs, labels = splits.training
    keras.utils.set_random_seed(run.seed)
    arguments = arguments_of(run.strategy)
    strategy = tfdp.DataParallelStrategy(
        devices=[f"CPU:{rank}" for rank in range(1 if run.engine else run.replicas)],
        batch_normalization="per_replica",  # that of as many examples whatever the batch
        **arguments,
    )
    corrected = isinstance(arguments.get("compression"), tfdp.compression.MomentumCorrection)
    sent = Recorder(strategy.extended.worker_devices)
    apart = isinstance(arguments.get("synchronization"), tfdp.synchronization.Asynchronous)
    with strategy.scope():
        model = build_model(run.task, inputs.shape[1:], splits.classes)
        model.compile(
            optimizer=make_optimizer(
                run.optimizer,
                run.learning_rate,
                run.steps(len(inputs)),
                run.gradient_accumulation_steps,
                momentum=0.0 if corrected else 0.9,
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    sent.attach(model)
    curve = _Curve()
    began = time.perf_counter()
    model.fit(
        _batches(run, inputs, labels),
        epochs=1 if apart else run.epochs,
        steps_per_epoch=None if apart else len(inputs) // run.step_batch,
        validation_data=None if apart else splits.validation,
        validation_batch_size=_EVALUATION_BATCH,
        callbacks=[curve],
        shuffle=False,  # `_batches` has shuffled
        verbose=0,
    )
    seconds = time.perf_counter() - began
    test_loss = test_accuracy = math.nan
    if not curve.diverged:
        if apart:
            curve.add_validation(*_evaluated(model, splits.validation))
        test_loss, test_accuracy = _evaluated(model, splits.test)
    diverged = curve.diverged or not math.isfinite(test_loss)
    return Outcome(
        val_accuracy=0.0 if diverged else curve.val_accuracies[-1],
        test_accuracy=0.0 if diverged else round(test_accuracy, 5),
        test_loss=None if diverged else round(test_loss, 5),
        diverged=diverged,
        loss_by_epoch=tuple(curve.losses),
        val_accuracy_by_epoch=tuple(curve.val_accuracies),
        updates=int(run.updates(len(inputs))),
        seconds=round(seconds, 1),
        versions={
            "tfdp": tfdp.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
        },
        bytes_sent=None if run.engine else _bytes_sent(sent, model, run),
        dropped_examples=strategy.extended.replicas.dropped_examples(),
        staleness=_staleness(strategy) if apart else None,
    )


def epoch_orders(run: Run, examples: int) -> np.ndarray:
    """Returns the indices of the examples of every step, shape (steps, step_batch)."""
    generator = np.random.default_rng(run.seed)
    steps = examples // run.step_batch
    return np.concatenate(
        [
            generator.permutation(examples)[: steps * run.step_batch].astype(np.int32)
            for _ in range(run.epochs)
        ]
    ).reshape(-1, run.step_batch)


def _batches(run: Run, inputs: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
    """Returns the batches of all epochs, one after the other."""
    all_inputs, all_labels = tf.constant(inputs), tf.constant(labels)
    return (
        tf.data.Dataset.from_tensor_slices(epoch_orders(run, len(inputs)))
        .map(lambda chosen: (tf.gather(all_inputs, chosen), tf.gather(all_labels, chosen)))
        .prefetch(2)
    )


def _evaluated(model: keras.Model, split: tuple[np.ndarray, np.ndarray]) -> list[float]:
    return model.evaluate(*split, batch_size=_EVALUATION_BATCH, verbose=0)


def _staleness(strategy: tfdp.DataParallelStrategy) -> dict[str, int]:
    """Returns how late changes came to this rank's home, as to any other: all take each change."""
    late = strategy.extended.processes.staleness()
    return {str(number): count for number, count in sorted(late.items())}


def _bytes_sent(recorder: Recorder, model: keras.Model, run: Run) -> int:
    """Returns the bytes that replica 0 sent, with the sums of weights at the ends of epochs."""
    counted = int(recorder.read().of("bytes_sent")[0])
    if "synchronization" not in run.strategy:
        return counted
    weights = sum(4 * int(np.prod(variable.shape)) for variable in model.trainable_variables)
    # The recorder does not see what happens between steps.
    return counted + run.epochs * 2 * (run.replicas - 1) * weights // run.replicas


class _Curve(keras.callbacks.Callback):
    """A callback that keeps the epochs' last values, and stops a training that has diverged."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.val_accuracies: list[float] = []
        self.diverged = False

    def on_epoch_end(self, epoch, logs=None):
        if not math.isfinite(logs["loss"]):
            self.diverged = self.model.stop_training = True
            return
        if "val_loss" in logs:
            self.add_validation(logs["val_loss"], logs["val_accuracy"])
        if not self.diverged:
            self.losses.append(float(f"{logs['loss']:.4g}"))

    def add_validation(self, loss: float, accuracy: float) -> None:
        """Keeps an accuracy, or ends the training where the loss has diverged."""
        if math.isfinite(loss):
            self.val_accuracies.append(round(float(accuracy), 5))
        else:
            self.diverged = self.model.stop_training = True
