"""Programs that others wrote, trained by steps that replicas run together as one device runs them.

The programs are those of `tests/foreign`. Where they call `fit`, a loop here gives the model's own
`train_step` whole batches; where they call `strategy.run`, all replicas run what they give to it.
"""

import contextlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from foreign.test_programs import PROGRAMS, arrays
from partition.check import strategy
from partition.training import signature_of

STEPS = 5

REPLICAS = 3  # share nearly every batch unevenly, and the last one has two examples

# `make test` runs these: a number that divides a loss, the order and the first examples of a batch,
# and an epoch in a graph.
KEPT = {"loop_in_a_graph", "masked_mean_by_hand", "memory_bank", "mixup_in_step"}

# All programs can run so. The types of operations that every replica computes whole, and why:
WHOLE = {
    # It wants the first examples of a batch, or another order of them, or puts them before others.
    "memory_bank": {"StridedSlice"},
    "mixup_in_step": {"TopKV2"},
    "queue_of_keys": {"ConcatV2"},
    # Entries are named by numbers that may be those of another example.
    "captcha": {"ScatterNd"},
    "policy_gradient": {"UnsortedSegmentSum"},
    # `tf.vectorized_map` takes the norms of the examples' gradients in a loop, one by one.
    "private_gradients": {"StridedSlice", "Mul"},
    # Keras' RMSprop looks for rows of a table that are in two sets of them.
    "tickets": {"ScatterNd", "StridedSlice", "ConcatV2"},
    "translation": {"ScatterNd", "StatelessIf", "StridedSlice", "ConcatV2"},
    # There is no rule for words of strings and for crosses of columns; what follows is as long as
    # they are, and no longer known to be as long as the batch.
    "text_vectorization": {"StringSplitV2", "SparseSoftmaxCrossEntropyWithLogits"},
    "wide_and_deep": {"SparseCross", "ConcatV2", "Sub"},
}


class Together:
    """A strategy whose replicas run together what is given to `run`, as a program of one device."""

    def __init__(self, strategy):
        self._strategy, self._made = strategy, {}

    @property
    def functions(self):
        return list(self._made.values())

    def __getattr__(self, name):
        return getattr(self._strategy, name)

    def run(self, function, args=(), kwargs=None):
        if function not in self._made:
            self._made[function] = self._strategy.partitioned(function)
        return self._made[function](*args, **(kwargs or {}))

    def reduce(self, op, value, axis):
        return value  # of the whole batch


class Loops:
    """Takes the place of Keras' `fit`, `evaluate` and `predict` on one device or on replicas.

    Args:
      strategy: The replicas' strategy; None: one device.
    """

    def __init__(self, strategy=None):
        self._strategy = strategy
        self.functions = []

    def fit(
        self,
        model,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        callbacks=None,
        class_weight=None,
        steps_per_epoch=None,
        validation_data=None,
        **_,
    ):
        batches = list(batches_of(x, y, batch_size, class_weight, steps_per_epoch))
        batches.append(tf.nest.map_structure(lambda rows: rows[:2], batches[0]))
        if self._strategy is None and model.built and model.optimizer and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        step = self._function(model.train_step, batches)
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, model=model, epochs=epochs, steps=len(batches), verbose=0
        )
        callbacks.on_train_begin()
        model.stop_training = False
        for epoch in range(-(-STEPS // len(batches))):
            for metric in model.metrics:
                metric.reset_state()
            callbacks.on_epoch_begin(epoch)
            for number, batch in enumerate(batches):
                callbacks.on_train_batch_begin(number)
                logs = {name: float(value) for name, value in step(batch).items()}
                callbacks.on_train_batch_end(number, logs)
            if validation_data is not None:
                validated = model.evaluate(*validation_data, return_dict=True)
                logs |= {f"val_{name}": value for name, value in validated.items()}
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        callbacks.on_train_end()
        return model.history

    def evaluate(self, model, x=None, y=None, batch_size=8, return_dict=False, **_):
        batches = list(batches_of(x, y, batch_size))
        step = self._function(model.test_step, batches)
        for metric in model.metrics:
            metric.reset_state()
        for batch in batches:
            logs = {name: float(value) for name, value in step(batch).items()}
        return logs if return_dict else list(logs.values())

    def predict(self, model, x, batch_size=8, **_):
        batches = list(batches_of(x, None, batch_size))
        step = self._function(model.predict_step, batches)
        parts = [step(batch) for batch in batches]
        return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)

    def _function(self, step, batches):
        """A method of a batch, of any length, as one device or replicas run it."""

        def of_batch(batch):
            return step(batch)

        if self._strategy is None:
            signature = signature_of([(batch,) for batch in batches])
            return tf.function(of_batch, autograph=False, input_signature=signature)
        self.functions.append(self._strategy.partitioned(of_batch))
        return self.functions[-1]


def batches_of(x, y=None, batch_size=None, class_weight=None, steps=None):
    """What `fit` takes, as batches that a step takes."""
    if isinstance(x, tf.data.Dataset):
        yield from x
    elif isinstance(x, keras.utils.PyDataset):
        yield from (tf.nest.map_structure(_tensor, x[index]) for index in range(len(x)))
    elif hasattr(x, "__next__"):
        yield from (tf.nest.map_structure(_tensor, next(x)) for _ in range(steps))
    else:
        weights = None
        if class_weight is not None:
            weights = np.array([class_weight[int(label)] for label in np.ravel(y)], "float32")
        data = keras.utils.pack_x_y_sample_weight(x, y, weights)
        length = len(tf.nest.flatten(x)[0])
        for start in range(0, length, batch_size):
            rows = slice(start, start + batch_size)
            yield tf.nest.map_structure(lambda each, rows=rows: _tensor(each[rows]), data)


def _tensor(array):
    array = np.asarray(array)
    return tf.convert_to_tensor(array.astype("float32") if array.dtype == np.float64 else array)


def made_by(program, replicas=None):
    """What a program makes, from the state of a fresh process, and the functions of its steps."""
    harness.start_over()
    many = None if replicas is None else strategy(replicas)
    together = tf.distribute.get_strategy() if many is None else Together(many)
    loops = Loops(many)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fit", "evaluate", "predict"):
            patch.setattr(keras.Model, name, method_of(getattr(loops, name)))
        if program.batches is None:
            made = program.run(together)
        else:
            with contextlib.nullcontext() if many is None else many.scope():
                model = program.run()
            made = model, model.fit(in_a_dataset(program.batches))
    return arrays(made), [*loops.functions, *getattr(together, "functions", ())]


def method_of(function):
    return lambda model, *args, **kwargs: function(model, *args, **kwargs)


def in_a_dataset(batches):
    specs = [tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in batches[0]]
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=tuple(specs))


@pytest.mark.parametrize("name", tiers.cases(PROGRAMS, KEPT))
def test_replicas_train_together_as_one_device(name):
    program = PROGRAMS[name]
    expected, _ = made_by(program)
    found, functions = made_by(program, REPLICAS)
    harness.assert_close(found, expected, program.tolerance)
    assert functions
    whole = {each.operation for function in functions for each in function.report.whole}
    assert whole == WHOLE.get(name, set())


def test_what_is_computed_whole_is_told_of_programs_that_there_are():
    assert PROGRAMS.keys() >= {*WHOLE, *KEPT}
