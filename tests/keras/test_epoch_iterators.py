"""Pipelines in `fit`, `evaluate` and `predict` train as on one device, and know where they are."""

import pathlib
import warnings

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras.src.trainers.data_adapters import tf_dataset_adapter

import tfdp
import tfdp.keras
from tfdp.strategy.programs import program_build

tfdp.keras.install()  # on one device no strategy does it


def arrays(examples=35):
    return harness.regression_data(examples)


def pipeline(size=8, seed=3, examples=35, **options):
    return tfdp.data.pipeline(arrays(examples), size, seed=seed, **options)


def unknown_length():
    def keep(*_):
        return True

    dataset = tf.data.Dataset.from_tensor_slices(arrays()).filter(keep)
    return tfdp.data.pipeline(dataset, 8, seed=3)


class Places(keras.callbacks.Callback):
    """Where the pipeline is after each step, and what `fit` says of its epochs."""

    def __init__(self, watched):
        super().__init__()
        self.watched, self.places, self.epochs = watched, [], []

    def on_train_batch_end(self, batch, logs=None):
        state = self.watched.state()
        self.places.append((state["epoch"], state["position"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((epoch, len(self.places)))


def fitted(make, restore=None, **fit):
    """A `use` that fits on a pipeline and returns all that can be seen of it."""

    def use(model):
        batches = make()
        if restore is not None:
            batches.restore({**batches.state(), **restore})
        places = Places(batches)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*ran out of data|.*shuffle=True")
            history = model.fit(
                batches, verbose=0, callbacks=[places], **{"epochs": 3, **fit}
            ).history
        return {
            "history": history,
            "places": np.array(places.places),
            "epochs": np.array(places.epochs),
        }

    return use


CASES = {
    "whole epochs": ({}, [5, 5, 5]),
    "a restart in the middle of an epoch": (
        {"restore": {"epoch": 1, "position": 16}},
        [3, 5, 5],
    ),
    "steps_per_epoch that does not divide the data": ({"steps_per_epoch": 3}, [3, 3, 3]),
    "steps_per_epoch beyond an epoch": ({"steps_per_epoch": 7}, [7, 7, 7]),
    "initial_epoch": ({"initial_epoch": 1}, [5, 5]),
    "initial_epoch with steps": ({"initial_epoch": 2, "steps_per_epoch": 4}, [4]),
}
FAST = {"a restart in the middle of an epoch"}


@pytest.mark.telling
@pytest.mark.parametrize("case", tiers.cases(CASES, FAST))
def test_fit_trains_as_on_one_device(case, trains_as_one_device):
    options, steps = CASES[case]
    one, _ = trains_as_one_device(harness.dense_model, fitted(pipeline, **options))
    assert np.diff([0, *one.seen["epochs"][:, 1]]).tolist() == steps


@pytest.mark.exhaustive("test_fit_trains_as_on_one_device")
@pytest.mark.parametrize("make", [unknown_length, lambda: pipeline(drop_remainder=True)])
def test_other_kinds_of_pipelines_train_as_on_one_device(make, trains_as_one_device):
    def use(model):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*ran out of data")
            return model.fit(make(), epochs=3, verbose=0).history

    # What a step does before it finds no batch is in its graph alone.
    trains_as_one_device(harness.dense_model, use, one_device_eagerly=False)


def test_a_pipeline_trains_as_the_same_batches_of_a_plain_dataset(replicas):
    batches = pipeline()
    epochs = [list(batches), list(batches)]

    def use(model):
        for epoch in epochs:
            sizes = [len(x) for x, _ in epoch]
            x, y = (np.concatenate(part) for part in zip(*epoch, strict=True))
            model.fit(harness.batches_of(sizes, x, y), verbose=0)

    expected = harness.train(harness.dense_model, use)
    seen = harness.train(
        harness.dense_model, lambda model: model.fit(pipeline(), epochs=2, verbose=0), replicas
    )
    for one, other in zip(expected.weights, seen.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=harness.WEIGHT_TOLERANCE)


def test_one_replica_has_one_program_for_batches_of_all_lengths(monkeypatch):
    made, partition = [], program_build.partition
    monkeypatch.setattr(
        program_build,
        "partition",
        lambda *args, **kwargs: made.append(1) or partition(*args, **kwargs),
    )

    def use(model):
        x, y = arrays()
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        history = model.fit(pipeline(), epochs=2, verbose=0).history
        evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
        predicted = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(8), verbose=0)
        return {"history": history, "evaluated": evaluated, "predicted": predicted}

    expected = harness.train(harness.dense_model, use)
    assert not made
    seen = harness.train(harness.dense_model, use, 1)
    assert len(made) == 3
    harness.assert_same_outcome(seen, expected)


def test_the_place_is_counted_in_examples_trained(replicas):
    batches = pipeline()
    model = harness.build_in_scope(harness.dense_model, replicas)
    seen = fitted(lambda: batches, epochs=2)(model)
    assert seen["places"].tolist() == [
        [0, 8], [0, 16], [0, 24], [0, 32], [1, 0],
        [1, 8], [1, 16], [1, 24], [1, 32], [2, 0],
    ]  # fmt: skip


@pytest.mark.exhaustive("keras/test_inputs.py::test_steps_per_execution_need_not_divide_the_epoch")
def test_steps_per_execution_count_each_step(trains_as_one_device):
    def build():
        return harness.dense_model(steps_per_execution=2)

    def use(model):
        batches = pipeline(examples=32)
        model.fit(batches, epochs=2, verbose=0)
        return batches.state()["epoch"]

    one, _ = trains_as_one_device(build, use)
    assert one.seen == 2


def classes(size=8):
    x, _ = arrays()
    return tfdp.data.pipeline((x, np.arange(35) % 3), size, seed=3)


def classifier():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def test_class_weights_count_as_on_one_device(trains_as_one_device):
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    fit = fitted(classes, class_weight=weights, epochs=2)
    one, _ = trains_as_one_device(classifier, fit)
    assert one.seen["places"][:2].tolist() == [[0, 8], [0, 16]]

    def by_sample(model):
        for _ in range(2):
            for x, y in batches:
                given = np.array([weights[int(label)] for label in y], "float32")
                model.train_on_batch(x, y, sample_weight=given)

    batches = classes()
    other = harness.train(classifier, by_sample)
    for expected, seen in zip(other.weights, one.weights, strict=True):
        np.testing.assert_allclose(seen, expected, rtol=0, atol=harness.WEIGHT_TOLERANCE)


def test_evaluate_and_predict_take_a_whole_epoch_and_move_nothing(trains_as_one_device):
    x, y = arrays()

    def use(model):
        batches = pipeline(shuffle=False)
        iterator = iter(batches)
        next(iterator)
        before = batches.state()
        seen = {
            "evaluate": model.evaluate(batches, verbose=0, return_dict=True),
            "predict": model.predict(batches, verbose=0),
            "two": model.predict(batches, steps=2, verbose=0),
        }
        assert batches.state() == before
        assert len(seen["predict"]) == 35
        assert len(seen["two"]) == 16
        on_arrays = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
        np.testing.assert_allclose(list(seen["evaluate"].values()), list(on_arrays.values()), 1e-5)
        return seen

    trains_as_one_device(harness.dense_model, use)


def test_validation_is_whole_after_each_epoch(trains_as_one_device):
    def use(model):
        validation = pipeline(shuffle=False, size=16)
        history = model.fit(pipeline(), validation_data=validation, epochs=3, verbose=0).history
        x, y = arrays()
        last = model.evaluate(x, y, verbose=0)[0]
        assert history["val_loss"][-1] == pytest.approx(last, rel=1e-5)
        return history

    trains_as_one_device(harness.dense_model, use)


@pytest.mark.exhaustive("test_validation_is_whole_after_each_epoch")
def test_training_data_may_be_evaluated_in_the_middle_of_an_epoch(trains_as_one_device):
    class Evaluate(keras.callbacks.Callback):
        def __init__(self, batches):
            super().__init__()
            self.batches, self.seen = batches, []

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.seen.append(self.model.evaluate(self.batches, verbose=0)[0])

    def use(model):
        batches = pipeline()
        callback = Evaluate(batches)
        model.fit(batches, epochs=2, verbose=0, callbacks=[callback])
        return {"seen": np.array(callback.seen), "epoch": batches.state()["epoch"]}

    trains_as_one_device(harness.dense_model, use)


@pytest.mark.exhaustive("test_fit_trains_as_on_one_device")
@harness.in_one_process
def test_a_killed_training_goes_on_as_if_nothing_had_happened(replicas, tmp_path):
    """Stopped after 8 of 15 steps; weights and place are saved, and restored in new objects."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 8:
                raise KeyboardInterrupt

    whole = harness.train(harness.dense_model, lambda m: m.fit(pipeline(), epochs=3, verbose=0))
    model = harness.build_in_scope(harness.dense_model, replicas)
    first = pipeline()
    with pytest.raises(KeyboardInterrupt):
        model.fit(first, epochs=3, verbose=0, callbacks=[Stop()])
    saved = first.state()
    model.save(tmp_path / "model.keras")
    del model
    other = 3 if replicas == 2 else 2  # on another number of replicas
    with harness.scope(other):
        model = keras.models.load_model(tmp_path / "model.keras")
    second = pipeline()
    second.restore(saved)
    history = model.fit(second, epochs=3, initial_epoch=saved["epoch"], verbose=0)
    assert len(history.history["loss"]) == 2
    for one, two in zip(whole.weights, harness.weights(model), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=harness.WEIGHT_TOLERANCE)


@harness.in_one_process
def test_backup_and_restore_goes_on_with_the_order_of_its_epoch(replicas, tmp_path):
    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    whole = harness.train(harness.dense_model, lambda m: m.fit(pipeline(), epochs=4, verbose=0))
    backup = keras.callbacks.BackupAndRestore(str(pathlib.Path(tmp_path) / "backup"))
    with pytest.raises(KeyboardInterrupt):
        harness.build_in_scope(harness.dense_model, replicas).fit(
            pipeline(), epochs=4, verbose=0, callbacks=[backup, Fail()]
        )
    model = harness.build_in_scope(harness.dense_model, replicas)
    model.fit(pipeline(), epochs=4, verbose=0, callbacks=[backup])
    for one, two in zip(whole.weights, harness.weights(model), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=harness.WEIGHT_TOLERANCE)


@harness.in_one_process
def test_another_pipeline_of_the_same_kind_is_not_traced_again(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    traces = []
    loss = keras.losses.MeanSquaredError()
    model.compile("sgd", loss=lambda y, p: traces.append(1) or loss(y, p))
    model.fit(pipeline(seed=1), verbose=0)
    traced = len(traces)
    second = pipeline(seed=2)
    model.fit(second, verbose=0)
    assert len(traces) == traced
    assert second.state()["epoch"] == 1


def test_the_batch_of_a_pipeline_is_known_to_the_warning_of_the_rate(replicas, caplog):
    strategy = harness.strategy(replicas)
    rate = tfdp.optimizers.scale_learning_rate(0.01, base_batch=8, batch=16)
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.SGD(rate))
    model.fit(pipeline(size=8), verbose=0)
    if getattr(strategy, "rank", 0) == 0:
        assert "scaled for a batch of 16, but an update has 8" in caplog.text


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize("steps", tiers.first_of(3, None))
def test_under_a_stock_strategy_each_example_is_trained_once_an_epoch(steps):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    harness.start_over()
    with strategy.scope():
        model = harness.dense_model()
    batches = pipeline(size=8)
    epochs = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append((batches.state()["epoch"], batches.state()["position"]))

    model.fit(batches, epochs=3, steps_per_epoch=steps, verbose=0, callbacks=[Epochs()])
    assert epochs == ([(0, 0), (1, 0), (2, 0)] if steps is None else [(0, 0), (0, 24), (1, 8)])
    assert model.optimizer.iterations == (15 if steps is None else 9)
    assert batches.state()["epoch"] == (3 if steps is None else 1)


def test_a_callback_list_begins_with_the_initial_epoch_too(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    batches = pipeline()
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model, epochs=4, steps=5)
    model.fit(batches, initial_epoch=2, epochs=4, verbose=0, callbacks=callbacks)
    assert batches.state()["epoch"] == 4


@pytest.mark.slow
def test_a_restored_beginning_is_not_moved_by_the_initial_epoch():
    model = harness.build_in_scope(harness.dense_model)
    batches = pipeline()
    batches.restore(batches.state())
    model.fit(batches, initial_epoch=2, epochs=3, verbose=0)
    assert batches.state()["epoch"] == 1


@harness.in_one_process
def test_after_an_error_of_the_map_function_the_strategy_still_works(replicas):
    def broken(x, y):
        return tf.debugging.check_numerics(x / (y - y), "no such number"), y

    model = harness.build_in_scope(harness.dense_model, replicas)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such number"):
        model.fit(pipeline(map_fn=broken), verbose=0)
    model.fit(pipeline(), verbose=0)


def test_a_trainer_that_knows_nothing_of_pipelines_is_refused_one():
    """As `fit` begins in a process without a strategy."""
    with pytest.raises(RuntimeError, match=r"no strategy of tfdp was made before\. Make one"):
        _ = tf_dataset_adapter.TFDatasetAdapter(pipeline()).num_batches
    with pytest.raises(RuntimeError, match=r"no strategy of tfdp was made before"):
        _ = tf_dataset_adapter.TFDatasetAdapter(pipeline(), class_weight={0: 1.0, 1: 2.0})
