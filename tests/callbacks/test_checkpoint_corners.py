"""Checkpoint and what programs of users do beside it."""

import functools
import multiprocessing
import os
import pathlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from resumed_training import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    STEPS,
    Stop,
    assert_same,
    build,
    pipeline,
)
from resumed_training import train as train_on

import tfdp
from tfdp.callbacks.checkpoint import folder
from tfdp.callbacks.checkpoint.remote_path import as_path

# What is asked here does not depend on the replicas, and one is traced in half the time.
train = functools.partial(train_on, devices=["CPU:0"])


def arrays():
    x, y = harness.regression_data(EXAMPLES)
    return {"x": x, "y": y, "batch_size": BATCH}


def with_averages():
    return keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5)


class Drawn(keras.callbacks.Callback):
    """Draws when an epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = float(np.random.uniform(0.01, 0.1))


class Patient(keras.callbacks.EarlyStopping):
    """Adds a state of its own to that of Keras' callback."""

    def __init__(self):
        super().__init__("loss", patience=100)
        self.factor = 1.0

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.factor *= 0.5
        self.model.optimizer.learning_rate = 0.05 * self.factor

    def get_state(self):
        return self.factor

    def set_state(self, state):
        self.factor = state


class Ends(keras.callbacks.Callback):
    """Ends the training within its second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= 2:  # of four micro-batches each
            self.model.stop_training = True


CASES = {
    "averages are swapped in": {
        "others": lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
        "make_optimizer": with_averages,
    },
    "a callback draws when an epoch begins": {"others": lambda: [Drawn()]},
    "a subclass has a state of its own": {"others": lambda: [Patient()]},
}


@pytest.mark.parametrize(
    "every", [{"every_steps": 1}, {"every_epochs": 1}], ids=["steps", "epochs"]
)
@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.cases(CASES, ["a callback draws when an epoch begins"]))
def test_what_callbacks_do_goes_on(case, every, tmp_path):
    changed = dict(CASES[case])
    others = changed.pop("others")
    whole = train(None, others=others(), data=arrays, **changed)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=2 * STEPS + 3, others=others(), data=arrays, **every, **changed)
    assert_same(train(tmp_path, others=others(), data=arrays, **every, **changed), whole)


@pytest.mark.slow
def test_a_training_that_ends_itself_within_an_epoch_has_that_epoch(tmp_path):
    class StopInValidation(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            if self.model.stop_training:
                raise Stop

    whole = train(None, others=[Ends()])
    with pytest.raises(Stop):
        train(tmp_path, others=[Ends(), StopInValidation()], every_steps=1)
    assert_same(train(tmp_path, others=[Ends()], every_steps=1), whole)


class Centered(keras.losses.Loss):
    """A loss with a variable that each step moves."""

    def __init__(self):
        super().__init__()
        self.center = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def call(self, true, predicted):
        self.center.assign(0.9 * self.center + 0.1)
        return keras.ops.mean(keras.ops.square(true - predicted - self.center), axis=-1)


def variables_of(*, loss=None, **attributes):
    model = build()
    for name, value in attributes.items():
        setattr(model, name, value)
    if loss is not None:
        with model.distribute_strategy.scope():
            model.compile("sgd", loss)
    return model


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.counted = tf.Variable(0.0)


def test_variables_of_losses_and_modules_are_kept():
    from tfdp.callbacks.checkpoint import model_variables

    def others(model):
        return [name for name in model_variables.named(model) if name.startswith("other")]

    assert len(others(variables_of())) == 0
    assert len(others(variables_of(loss=Centered()))) == 1
    assert len(others(variables_of(module=Module()))) == 1


def test_a_second_optimizer_must_be_built(tmp_path):
    model = build()
    with model.distribute_strategy.scope():
        model.second = keras.optimizers.Adam(name="second")
    kept = tfdp.callbacks.Checkpoint(tmp_path, every_epochs=1)
    with pytest.raises(ValueError, match=r"Adam 'second' in .* Call its `build`"):
        model.fit(pipeline(), callbacks=[kept], verbose=0)


@pytest.mark.slow
def test_callbacks_without_a_state_may_come_and_go(tmp_path):
    whole = train(None)
    with pytest.raises(Stop):
        log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
        train(tmp_path, stop_at=STEPS + 1, others=[log], every_steps=1)
    assert_same(train(tmp_path, every_steps=1), whole)


@pytest.mark.slow
def test_results_that_are_no_numbers_are_kept(tmp_path):
    class Says(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs |= {"said": "so", "of": np.arange(2, dtype="float32")}

    def history(**arguments):
        return train(tmp_path, others=[Says()], every_steps=1, **arguments)[1]

    with pytest.raises(Stop):
        history(stop_at=STEPS + 1)
    gone_on = history()
    assert gone_on["said"] == ["so"] * EPOCHS
    assert [value.dtype.name for value in gone_on["of"]] == ["float32"] * EPOCHS
    np.testing.assert_array_equal(gone_on["of"], [[0, 1]] * EPOCHS)


@pytest.mark.slow
def test_a_state_that_is_no_json_is_refused_by_name(tmp_path):
    class Wrong(keras.callbacks.Callback):
        def get_state(self):
            return np.float32(1)

        def set_state(self, state):
            pass

    with pytest.raises(TypeError, match=r"`Wrong.get_state` must return what JSON can hold"):
        train(tmp_path, others=[Wrong()], every_steps=1)


@pytest.mark.slow
def test_data_that_a_training_has_read_are_refused(tmp_path):
    data = tf.data.Dataset.from_tensor_slices(harness.regression_data(EXAMPLES)).shuffle(9)
    data = data.batch(BATCH)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=2, data=lambda: {"x": data}, every_steps=1)
    with pytest.raises(ValueError, match="Make it anew before each `fit`"):
        train(tmp_path, data=lambda: {"x": data}, every_steps=1)


@pytest.mark.exhaustive("test_what_callbacks_do_goes_on")
def test_the_best_so_far_stays_the_best_beside_it(tmp_path):
    def best(name):
        # The first epoch's loss is the largest.
        path = tmp_path / name / "{epoch}.weights.h5"
        return [keras.callbacks.ModelCheckpoint(path, "loss", mode="max", save_best_only=True)]

    train(None, others=best("whole"))
    kept = tmp_path / "kept"
    with pytest.raises(Stop):
        train(kept, stop_at=2 * STEPS + 1, others=best("stopped"), every_steps=1)
    train(kept, others=best("stopped"), every_steps=1)
    names = {name: sorted(os.listdir(tmp_path / name)) for name in ("whole", "stopped")}
    assert names == {"whole": ["1.weights.h5"], "stopped": ["1.weights.h5"]}


@pytest.mark.slow
def test_damaged_files_of_later_steps_are_set_aside(tmp_path):
    (tmp_path / "step-00000900.checkpoint").write_bytes(b"cut")
    (tmp_path / "step-00000800.checkpoint").mkdir()
    train(tmp_path, epochs=1, every_steps=1, keep=1)
    assert [path.name for path in folder.newest_first(tmp_path)] == ["step-00000006.checkpoint"]
    assert (tmp_path / "step-00000900.checkpoint.damaged").exists()


@pytest.mark.slow
def test_a_file_that_cannot_be_read_now_is_an_error(tmp_path, monkeypatch):
    train(tmp_path, epochs=1, every_epochs=1)

    def broken(path, mode):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pathlib.Path, "open", broken)
    with pytest.raises(OSError, match="Input/output error"):
        train(tmp_path, every_epochs=1)


def test_the_folder_is_one_that_this_process_reaches():
    assert tfdp.callbacks.Checkpoint("~/kept", every_epochs=1).directory.is_absolute()
    with pytest.raises(ValueError, match=r"received 'abc://bucket/kept'. Install and import what"):
        tfdp.callbacks.Checkpoint("abc://bucket/kept", every_epochs=1)


@pytest.mark.exhaustive(
    "callbacks/checkpoint/test_remote_path.py::test_remote_checkpoints_are_written_read_and_removed"
)
def test_a_training_goes_on_from_a_remote_folder_and_a_write_that_was_cut_counts_for_nothing():
    whole = train(None)
    with pytest.raises(Stop):
        train("ram://kept/of/one", stop_at=STEPS + 3, every_steps=1)
    newest = folder.newest_first(as_path("ram://kept/of/one"))[0]
    shorter = newest.read_bytes()[:-100]
    with newest.writing() as file:
        file.write(shorter)
    assert_same(train("ram://kept/of/one", every_steps=1), whole)


def _sleep():
    import time

    time.sleep(300)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process")  # it is multi-threaded, which is the point
def test_forked_children_are_no_ranks(tmp_path):
    class Forks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                child = multiprocessing.get_context("fork").Process(target=_sleep)
                child.start()
                child.terminate()
                child.join(120)
                codes.append(child.exitcode)

    codes = []
    train(tmp_path, epochs=2, others=[Forks()], every_steps=1)
    assert codes == [-15, -15]
