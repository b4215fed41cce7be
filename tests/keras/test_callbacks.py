"""Callbacks decide as on one device: what they see has been reduced."""

import harness
import keras
import numpy as np
import pytest
from keras import callbacks, optimizers

X, Y = harness.regression_data(29)


def build(learning_rate=0.3):
    """Learns so fast that the validation loss soon goes up and down."""
    return harness.dense_model(optimizers.SGD(learning_rate))


def rate_of(model):
    return float(harness.global_value(model.optimizer.learning_rate))


def fit(model, *chosen, epochs=8):
    return harness.fit_arrays(
        model, X[:21], Y[:21], epochs=epochs, validation_data=(X[21:], Y[21:]), callbacks=chosen
    )


def test_early_stopping_stops_and_restores_as_on_one_device(trains_as_one_device):
    def use(model):
        stop = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
        history = fit(model, stop)
        return {"history": history, "stopped": stop.stopped_epoch, "best": stop.best_epoch}

    outcome, _ = trains_as_one_device(build, use)
    assert 0 < outcome.seen["stopped"] < 7, "It never stopped; the comparison says nothing."


def test_a_callback_reads_variables_as_on_one_device(trains_as_one_device):
    def use(model):
        read = []

        def note(batch, logs):
            optimizer = model.optimizer
            numbers = float(optimizer.learning_rate), int(optimizer.iterations)
            arrays = np.array(model.layers[0].bias), model.layers[0].kernel.numpy()
            read.append([*numbers, *arrays, f"{float(optimizer.learning_rate):.3f}"])

        harness.fit_arrays(model, callbacks=[callbacks.LambdaCallback(on_train_batch_end=note)])
        return read

    outcome, _ = trains_as_one_device(build, use)
    assert [step[1] for step in outcome.seen] == [1, 2, 3, 4, 5]


@pytest.mark.exhaustive("test_early_stopping_stops_and_restores_as_on_one_device")
def test_a_plateau_reduces_the_learning_rate_as_on_one_device(trains_as_one_device):
    def use(model):
        rates = []
        record = callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(rate_of(model))
        )
        plateau = callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1)
        return {"history": fit(model, plateau, record), "rates": rates}

    outcome, _ = trains_as_one_device(build, use)
    assert len(set(outcome.seen["rates"])) > 1, "No plateau; the comparison says nothing."


def test_the_best_checkpoints_are_one_devices(trains_as_one_device, tmp_path_factory):
    def use(model):
        folder = harness.new_folder(tmp_path_factory, "checkpoints", model)
        best = callbacks.ModelCheckpoint(
            folder / "{epoch:02d}.keras", monitor="val_loss", save_best_only=True
        )
        history = fit(model, best, epochs=5)
        files = sorted(folder.iterdir())
        kept = [keras.saving.load_model(file).get_weights() for file in files]
        return {"history": history, "names": [f.name for f in files], "weights": kept}

    outcome, _ = trains_as_one_device(build, use)
    assert 1 <= len(outcome.seen["names"]) < 5


@pytest.mark.exhaustive("test_early_stopping_stops_and_restores_as_on_one_device")
def test_a_learning_rate_scheduler_acts_as_on_one_device(trains_as_one_device):
    def use(model):
        halve = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        return fit(model, halve, epochs=3)

    outcome, _ = trains_as_one_device(build, use)
    np.testing.assert_allclose(outcome.seen["learning_rate"], [0.15, 0.075, 0.0375], rtol=1e-6)


@pytest.mark.exhaustive("test_early_stopping_stops_and_restores_as_on_one_device")
def test_terminating_on_nan_stops_as_on_one_device(trains_as_one_device):
    targets = Y.copy()
    targets[9] = np.nan  # in the second batch, on one replica

    def use(model):
        batches = []
        count = callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batches.append(batch)
        )
        harness.fit_arrays(model, X, targets, callbacks=[callbacks.TerminateOnNaN(), count])
        return batches

    outcome, _ = trains_as_one_device(build, use)
    assert outcome.seen == [0, 1]


@pytest.mark.slow
def test_swapping_in_averaged_weights_acts_as_on_one_device(trains_as_one_device):
    def averaging():
        return harness.dense_model(optimizers.SGD(0.2, use_ema=True, ema_momentum=0.7))

    def use(model):
        return fit(model, callbacks.SwapEMAWeights(swap_on_epoch=True), epochs=3)

    trains_as_one_device(averaging, use)


@pytest.mark.slow
def test_training_is_backed_up_and_restored_as_on_one_device(
    trains_as_one_device, tmp_path_factory
):
    class Crash(Exception):
        pass

    def crash(epoch, logs):
        if epoch == 1:
            raise Crash

    def use(model):
        folder = harness.new_folder(tmp_path_factory, "backup", model)
        start = model.get_weights()
        with pytest.raises(Crash):
            fit(
                model,
                callbacks.BackupAndRestore(folder, delete_checkpoint=False),
                callbacks.LambdaCallback(on_epoch_begin=crash),
            )
        model.set_weights(start)
        return fit(model, callbacks.BackupAndRestore(folder), epochs=3)

    outcome, _ = trains_as_one_device(build, use)
    assert len(outcome.seen["loss"]) == 2
