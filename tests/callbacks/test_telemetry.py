"""`Telemetry` in one process: each number against another way to get it."""

import contextlib
import json
import threading

import harness
import keras
import numpy as np
import pytest
import resumed_training
import tensorflow as tf
import tiers
from callbacks.telemetry_lines import lines

import tfdp
from tfdp.base.recording import Recorder
from tfdp.tools.report.rank_log import read_rank

PARTS = ("input", "compute", "meeting", "communication")

pytestmark = [pytest.mark.slow, harness.in_one_process]


def fit(folder, replicas=2, optimizer=None, build=None, sample_every=1, data=None, **options):
    """Trains the smallest model with telemetry; returns it and the lines of its steps."""
    optimizer = optimizer or (lambda: keras.optimizers.SGD(0.1))
    build = build or (lambda: harness.dense_model(optimizer(), **options.pop("compiled", {})))
    model = harness.build_in_scope(build, replicas)
    x, y = harness.regression_data()
    given = {"x": x, "y": y, "batch_size": 7} if data is None else {"x": data(x, y)}
    callback = tfdp.callbacks.Telemetry(folder, sample_every=sample_every)
    options = {"epochs": 1, "shuffle": False, "verbose": 0, **options}
    model.fit(**given, callbacks=[*options.pop("callbacks", []), callback], **options)
    return model, lines(folder)


def one_device_norms(batches, build, learning_rate=0.1, clip=None):
    """The global norms of each batch's gradient, replayed by hand on one device."""
    model = harness.build_in_scope(build)
    norms = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        flat = np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in gradients])
        norms.append(np.linalg.norm(flat.astype("float64")))
        factor = 1.0 if clip is None else min(1.0, clip / norms[-1])
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign(variable - learning_rate * factor * tf.convert_to_tensor(gradient))
    return norms


def batches_of(size):
    x, y = harness.regression_data()
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize(
    "replicas",
    tiers.first_of(3, 1, 2),
    ids=harness.count_id,
)
def test_gradient_norms_are_those_of_the_global_batch(tmp_path, replicas):
    _, steps = fit(tmp_path, replicas)
    expected = one_device_norms(batches_of(7), harness.dense_model)
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], expected, rtol=1e-5)


@pytest.mark.exhaustive(
    "test_gradient_norms_are_taken_after_unscaling_and_steps_that_overflow_have_none"
)
def test_gradient_norms_are_taken_before_clipping(tmp_path):
    _, steps = fit(tmp_path, optimizer=lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    expected = one_device_norms(batches_of(7), harness.dense_model, clip=0.5)
    assert max(expected) > 0.5
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], expected, rtol=1e-5)


def test_gradient_norms_are_taken_after_unscaling_and_steps_that_overflow_have_none(tmp_path):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)

    def data(x, y):
        y = y.copy()
        y[15] = np.inf  # in the third of five batches
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(7)

    _, steps = fit(tmp_path, optimizer=optimizer, data=data)
    sound = [batch for i, batch in enumerate(batches_of(7)) if i != 2]
    norms = [step["gradient_norm"] for step in steps if "gradient_norm" in step]
    np.testing.assert_allclose(norms, one_device_norms(sound, harness.dense_model), rtol=1e-5)
    assert "gradient_norm" not in steps[2]
    assert [step["skipped_steps"] for step in steps] == [0, 0, 1, 0, 0]
    assert [step["loss_scale"] for step in steps] == [1024, 1024, 512, 512, 512]


def test_with_accumulation_a_sample_lasts_until_the_window_closes(tmp_path):
    def optimizer():
        return keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)

    _, steps = fit(tmp_path, optimizer=optimizer, epochs=2, sample_every=4)
    sampled = {step["step"]: step for step in steps if "compute_seconds" in step}
    # Due at 4 and 8; the windows close at 6 and 9.
    assert sorted(sampled) == [6, 9]
    sent = [step["step"] for step in steps if step["bytes_sent"]]
    assert sent == [3, 6, 9]
    batches = batches_of(7) * 2
    joined = [
        tuple(np.concatenate(parts) for parts in zip(*batches[i : i + 3], strict=True))
        for i in (0, 3, 6)
    ]
    expected = one_device_norms(joined, harness.dense_model)
    np.testing.assert_allclose(
        [sampled[6]["gradient_norm"], sampled[9]["gradient_norm"]], expected[1:], rtol=1e-5
    )


@pytest.mark.parametrize("optimizer", tiers.first_of("adam", "sgd"))
def test_rows_that_occur_twice_are_one_row_of_the_norm(tmp_path, optimizer):
    words = np.array([[1, 1], [2, 1], [0, 2], [1, 1]])
    targets = np.float32([[1], [2], [3], [4]])

    def build():
        model = keras.Sequential(
            [
                keras.Input([2]),
                keras.layers.Embedding(5, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer, "mse")
        return model

    def data(x, y):
        return tf.data.Dataset.from_tensors((words, targets))

    _, (step,) = fit(tmp_path, build=build, data=data)
    (expected,) = one_device_norms([(words, targets)], build)
    assert step["gradient_norm"] == pytest.approx(expected, rel=1e-5)
    assert step["bytes_sent"] > 0
    assert step["collectives"]["buckets"] >= 1


def test_trust_ratios_are_those_of_the_update(tmp_path):
    def build():
        model = harness.dense_model(tfdp.optimizers.LARS(1.0, momentum=0.0, weight_decay=0.0))
        weights.append(model.get_weights())
        return model

    weights = []
    _, steps = fit(tmp_path, build=build)
    model = harness.build_in_scope(harness.dense_model)
    (x, y), *_ = batches_of(7)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    kernels = [0, 2]  # biases have none
    ratios = [1e-3 * np.linalg.norm(weights[0][i]) / np.linalg.norm(gradients[i]) for i in kernels]
    found = steps[0]["trust_ratios"]
    expected = {"min": min(ratios), "median": np.mean(ratios), "max": max(ratios)}
    assert found == pytest.approx(expected, rel=1e-4)


def test_examples_are_those_of_all_replicas_in_a_short_batch_too(tmp_path):
    _, steps = fit(tmp_path, replicas=3, data=lambda x, y: harness.batches_of([7, 7, 2], x, y))
    assert [step["examples"] for step in steps] == [7, 7, 2]
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        rate = step["examples"] / step["seconds"]
        assert step["examples_per_second"] == pytest.approx(rate, rel=1e-3)


class OneWeight(keras.Model):
    """Trains on the mean row of its data, of any kind."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="ones")
        self.built = True

    def train_step(self, data):
        (rows, *_) = data
        _, rows = rows if isinstance(rows, tuple) else (None, rows)
        total = tf.sparse.reduce_sum if isinstance(rows, tf.SparseTensor) else tf.reduce_sum
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(total(rows, axis=-1)) * self.weight
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


ROWS = tf.ragged.constant([[1.0, 2.0, 3.0], [4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 1.0], [2.0]])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "of_rows",
    [
        lambda rows, y: (rows, y),
        lambda rows, y: (rows.to_sparse(), y),
        lambda rows, y: ((tf.constant(1.0), rows.to_tensor(shape=[None, 4])), y),
    ],
    ids=["ragged", "sparse", "after a scalar"],
)
def test_examples_are_rows_of_what_has_rows(tmp_path, of_rows, replicas):
    data = tf.data.Dataset.from_tensor_slices((ROWS, tf.zeros([5]))).batch(2).map(of_rows)
    model, (*told,) = fit(
        tmp_path,
        replicas,
        build=lambda: compiled(OneWeight()),
        data=lambda *_: data,
    )
    assert [line["examples"] for line in told] == [2, 2, 1]
    alone = compiled(OneWeight())
    alone.fit(data, verbose=0)
    np.testing.assert_allclose(float(model.weight), float(alone.weight), rtol=1e-6)


def compiled(model):
    model.compile(keras.optimizers.SGD(0.01))
    return model


def test_an_execution_of_several_steps_is_one_line(tmp_path):
    _, steps = fit(tmp_path, compiled={"steps_per_execution": 3})
    assert [step["steps"] for step in steps] == [3, 2]
    assert [step["examples"] for step in steps] == [21, 14]
    norms = np.array(one_device_norms(batches_of(7), harness.dense_model))
    expected = [np.sqrt(np.mean(norms[:3] ** 2)), np.sqrt(np.mean(norms[3:] ** 2))]
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], expected, rtol=1e-5)
    assert "input_seconds" not in steps[0]


@pytest.mark.parametrize(
    ("kind", "executed"),
    [
        ("pipeline", 2),
        *(pytest.param(k, 1, marks=pytest.mark.exhaustive) for k in ("generator", "pipeline")),
    ],
)
def test_waiting_for_input_is_told_from_computing(tmp_path, kind, executed):
    @tf.numpy_function(Tout=tf.float32)
    def slowly(x):
        released.wait(0.2)
        return x

    released = threading.Event()

    def data(x, y):
        if kind == "pipeline":
            return tfdp.data.pipeline((x, y), 7, seed=1, map_fn=lambda x, y: (slow(x), y))
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
        return dataset.map(lambda x, y: (slow(x), y))

    def slow(x):
        shape = x.shape
        x = slowly(x)
        x.set_shape(shape)
        return x

    _, steps = fit(tmp_path, data=data, compiled={"steps_per_execution": executed})
    waited = sum(step["input_seconds"] for step in steps)
    assert waited > 0.15  # a batch takes 0.2 s at least
    assert all(step["input_seconds"] <= step["seconds"] for step in steps)


def test_parts_of_a_sampled_step_are_no_more_than_the_step(tmp_path):
    _, steps = fit(tmp_path, sample_every=2, epochs=2)
    sampled = [step for step in steps if "compute_seconds" in step]
    assert [step["step"] for step in sampled] == [2, 4, 6, 8, 10]
    for step in sampled:
        parts = [step[f"{part}_seconds"] for part in PARTS]
        assert all(part >= 0 for part in parts)
        assert 0 < sum(parts) <= step["seconds"] * 1.001
        assert "first_bucket_wait_seconds" in step
    assert all("gradient_norm" not in step for step in steps if step not in sampled)


def test_weights_are_the_same_with_and_without(tmp_path):
    def optimizer():
        return tfdp.optimizers.LAMB(0.1, gradient_accumulation_steps=2, global_clipnorm=1.0)

    def without():
        model = harness.build_in_scope(lambda: harness.dense_model(optimizer()), 2)
        x, y = harness.regression_data()
        model.fit(x, y, batch_size=7, shuffle=False, verbose=0)
        return model.get_weights()

    model, _ = fit(tmp_path, optimizer=optimizer)
    for mine, theirs in zip(model.get_weights(), without(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_model_that_was_trained_before_is_traced_once_more_and_then_kept(tmp_path):
    model = harness.build_in_scope(harness.dense_model, 2)
    x, y = harness.regression_data()
    options = {"batch_size": 7, "verbose": 0}
    model.fit(x, y, **options)
    plain = model.train_function
    model.fit(x, y, **options, callbacks=[tfdp.callbacks.Telemetry(tmp_path / "a", 1)])
    recording = model.train_function
    assert recording is not plain
    model.fit(x, y, **options)
    model.fit(x, y, **options, callbacks=[tfdp.callbacks.Telemetry(tmp_path / "b", 1)])
    assert model.train_function is recording
    assert [step["step"] for step in lines(tmp_path / "a")] == [6, 7, 8, 9, 10]
    assert [step["step"] for step in lines(tmp_path / "b")] == [16, 17, 18, 19, 20]
    assert all(step["examples"] == 7 for step in lines(tmp_path / "b"))
    assert Recorder.of(model).samples is False


def test_epochs_validation_and_the_run_have_lines(tmp_path):
    x, y = harness.regression_data()
    model, _ = fit(tmp_path, epochs=2, validation_data=(x, y), compiled={"metrics": ["mae"]})
    (start,) = lines(tmp_path, "start")
    assert (start["format"], start["rank"], start["world_size"]) == (1, 0, 1)
    assert (start["replicas"], start["devices"]) == (2, ["CPU:0", "CPU:1"])
    assert (start["optimizer"], start["parameters"]) == ("SGD", model.count_params())
    assert (start["epochs"], start["steps_per_epoch"]) == (2, 5)
    epochs = lines(tmp_path, "epoch")
    assert [(line["epoch"], line["step"]) for line in epochs] == [(0, 5), (1, 10)]
    logs = {name: model.history.history[name][1] for name in ("loss", "val_mae")}
    assert {name: epochs[1]["logs"][name] for name in logs} == logs
    assert [line["epoch"] for line in lines(tmp_path, "validation")] == [0, 1]
    assert lines(tmp_path, "end")[0]["step"] == 10
    assert json.loads((tmp_path / "manifest.json").read_text())["model"]["parameters"] == 43


def test_tensorboard_has_the_samples_and_the_epochs(tmp_path):
    fit(tmp_path, sample_every=2)
    (path,) = (tmp_path / "tensorboard" / "rank0").iterdir()
    events = tf.compat.v1.train.summary_iterator(str(path))
    tags = {(v.tag, event.step) for event in events for v in event.summary.value}
    assert {("gradient_norm", 2), ("gradient_norm", 4), ("examples_per_second", 4)} <= tags
    assert ("epoch_loss", 0) in tags
    assert ("gradient_norm", 3) not in tags


@pytest.mark.exhaustive("test_tensorboard_has_the_samples_and_the_epochs")
def test_without_tensorboard_there_are_no_events(tmp_path):
    model = harness.build_in_scope(harness.dense_model, 2)
    telemetry = tfdp.callbacks.Telemetry(tmp_path, tensorboard=False)
    model.fit(*harness.regression_data(), verbose=0, callbacks=[telemetry])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "rank0.jsonl"]


@pytest.mark.parametrize("strategy", tiers.first_of("none", "mirrored"))
def test_without_a_strategy_of_tfdp_there_is_what_keras_tells(tmp_path, strategy):
    harness.start_over()
    if strategy == "none":
        model = harness.dense_model()
    else:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = harness.dense_model()
    x, y = harness.regression_data(examples=28)
    model.fit(x, y, batch_size=14, verbose=0, callbacks=[tfdp.callbacks.Telemetry(tmp_path, 1)])
    steps = lines(tmp_path)
    assert [step["step"] for step in steps] == [1, 2]
    assert [step["steps"] for step in steps] == [1, 1]
    assert all(step["seconds"] > 0 and "loss" in step for step in steps)
    assert all("examples" not in step and "gradient_norm" not in step for step in steps)


@pytest.mark.exhaustive("test_without_a_strategy_of_tfdp_there_is_what_keras_tells")
def test_without_a_strategy_the_last_execution_counts_the_steps_that_there_are(tmp_path):
    harness.start_over()
    model = harness.dense_model(steps_per_execution=4)
    x, y = harness.regression_data()
    telemetry = tfdp.callbacks.Telemetry(tmp_path, 1)
    model.fit(x, y, batch_size=6, epochs=2, verbose=0, callbacks=[telemetry])  # six batches
    assert [step["step"] for step in lines(tmp_path)] == [4, 6, 10, 12]


@pytest.mark.exhaustive("test_parts_of_a_sampled_step_are_no_more_than_the_step")
def test_two_with_other_samples_do_not_disturb_each_other(tmp_path):
    both = [tfdp.callbacks.Telemetry(tmp_path / str(every), every) for every in (2, 3)]
    fit(tmp_path / "1", callbacks=both, epochs=2)
    for every in (2, 3):
        sampled = [s["step"] for s in lines(tmp_path / str(every)) if "gradient_norm" in s]
        assert sampled == list(range(every, 11, every))


@pytest.mark.exhaustive("test_epochs_validation_and_the_run_have_lines")
def test_metrics_that_are_vectors_are_lists(tmp_path):
    def build():
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
        return model

    def data(x, y):
        labels = np.eye(3, dtype="float32")[np.arange(len(x)) % 3]
        return tf.data.Dataset.from_tensor_slices((x, labels)).batch(7)

    fit(tmp_path, build=build, data=data)
    (epoch,) = lines(tmp_path, "epoch")
    assert np.shape(epoch["logs"]["f1_score"]) == (3,)


@pytest.mark.exhaustive("test_a_model_that_was_trained_before_is_traced_once_more_and_then_kept")
def test_a_run_that_goes_on_in_the_same_folder_counts_on(tmp_path):
    """Also where no optimizer counts, as of a GAN: here steps are not the optimizer's."""

    def go_on(initial_epoch, epochs):
        fit(
            tmp_path,
            optimizer=lambda: keras.optimizers.SGD(0.1),
            initial_epoch=initial_epoch,
            epochs=epochs,
        )

    go_on(0, 2)
    go_on(2, 3)
    assert [step["step"] for step in lines(tmp_path)] == list(range(1, 16))


def of_arrays(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(7)


def of_pipeline(x, y):
    return tfdp.data.pipeline((x, y), 7, seed=1)


@pytest.mark.parametrize("data", tiers.first_of(of_arrays, of_pipeline))
@pytest.mark.parametrize(("stop_at", "kept"), tiers.first_of((9, 8), (3, 2)))
def test_a_run_that_goes_on_in_mid_epoch_counts_on(tmp_path, data, stop_at, kept):
    """Five steps an epoch: what came after the checkpoint is repeated, and nothing else."""

    def train(*others):
        checkpoint = tfdp.callbacks.Checkpoint(tmp_path / "kept", every_steps=2)
        callback = tfdp.callbacks.Telemetry(tmp_path)
        x, y = harness.regression_data()
        keras.utils.set_random_seed(1)
        with tfdp.DataParallelStrategy(["CPU:0"]).scope():
            model = harness.dense_model(keras.optimizers.SGD(0.1))
        model.fit(data(x, y), epochs=3, verbose=0, callbacks=[callback, *others, checkpoint])

    with contextlib.suppress(resumed_training.Stop):
        train(resumed_training.StopAt(stop_at, resumed_training.stop))
    train()
    repeated = list(range(kept + 1, stop_at + 1))
    assert [step["step"] for step in lines(tmp_path)] == [
        *range(1, stop_at + 1),
        *range(kept + 1, 16),
    ]
    assert {step["steps"] for step in lines(tmp_path)} == {1}
    log = read_rank(tmp_path / "rank0.jsonl")
    assert log.repeated_steps == len(repeated) and log.restarts == (kept + 1,)
    assert [step.step for step in log.steps] == list(range(1, 16))


@pytest.mark.exhaustive("test_a_run_that_goes_on_in_mid_epoch_counts_on")
def test_a_pipeline_that_was_restored_by_hand_in_mid_epoch_counts_on(tmp_path):
    state = {}

    def train(initial_epoch, *callbacks):
        def data(x, y):
            made = of_pipeline(x, y)
            if state:
                made.restore(state["kept"])
            state["pipeline"] = made
            return made

        fit(tmp_path, data=data, initial_epoch=initial_epoch, epochs=3, callbacks=callbacks)

    with contextlib.suppress(resumed_training.Stop):
        train(0, resumed_training.StopAt(8, resumed_training.stop))
    state["kept"] = state["pipeline"].state()
    train(1)
    steps = [step["step"] for step in lines(tmp_path)]
    assert steps == [*range(1, 8), *range(9, 16)]  # the callback that stopped came before it


@pytest.mark.exhaustive("test_epochs_validation_and_the_run_have_lines")
def test_the_manifest_knows_the_targets_too(tmp_path):
    x, y = harness.regression_data()
    for name, targets in (("a", y), ("b", 0 * y)):
        model = harness.build_in_scope(harness.dense_model, 2)
        model.fit(x, targets, verbose=0, callbacks=[tfdp.callbacks.Telemetry(tmp_path / name)])
    one, other = (json.loads((tmp_path / n / "manifest.json").read_text())["data"] for n in "ab")
    assert one["checksum"] != other["checksum"]


def test_eager_steps_are_counted_and_their_inside_is_not_known(tmp_path):
    _, steps = fit(tmp_path, compiled={"run_eagerly": True})
    assert [step["examples"] for step in steps] == [7] * 5
    assert not any({"bytes_sent", "input_seconds", "compute_seconds"} & set(s) for s in steps)
    expected = one_device_norms(batches_of(7), harness.dense_model)
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], expected, rtol=1e-5)


@pytest.mark.exhaustive("test_gradient_norms_are_those_of_the_global_batch")
def test_compiled_steps_are_recorded_around_what_xla_compiles(tmp_path):
    _, steps = fit(tmp_path, compiled={"jit_compile": True})
    expected = one_device_norms(batches_of(7), harness.dense_model)
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], expected, rtol=1e-5)
    assert all(step["bytes_sent"] for step in steps)


@pytest.mark.parametrize("sample_every", [0, -1, 1.5, True])
def test_a_sample_every_that_is_no_number_of_steps_is_refused(tmp_path, sample_every):
    with pytest.raises(ValueError, match=r"`sample_every` must be .* Use sample_every=10\."):
        tfdp.callbacks.Telemetry(tmp_path, sample_every)


def test_evaluating_with_it_writes_nothing(tmp_path):
    model = harness.build_in_scope(harness.dense_model, 2)
    telemetry = tfdp.callbacks.Telemetry(tmp_path)
    model.evaluate(*harness.regression_data(), verbose=0, callbacks=[telemetry])
    assert not list(tmp_path.iterdir())
