"""Delayed gradients train as one device does that applies each step's gradients later."""

import types

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from delayed_replay import Replay, momentum_in_numpy
from keras import layers, optimizers

import tfdp
from tfdp.base import recording
from tfdp.synchronization import Asynchronous, Delayed

EXAMPLES, BATCH = 35, 8  # the last batch has 3 examples, and so leaves a replica of four without


def dense(optimizer, **options):
    return harness.dense_model(optimizer, metrics=(), **options)


def normalized(optimizer):
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(6, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def frozen(optimizer):
    model = dense(optimizer)
    model.layers[0].trainable = False
    model.compile(optimizer, "mse")
    return model


def made(replicas, make, steps=1, **options):
    harness.start_over()
    strategy = harness.strategy(replicas, synchronization=Delayed(steps), **options)
    with strategy.scope():
        return make()


def on_one_device(make, **options):
    harness.start_over()
    return Replay(make(), **options)


def assert_as(model, replay, tolerance=1e-5):
    expected = replay.model.get_weights()
    harness.assert_close_arrays(model.get_weights(), expected, tolerance, "weights")
    harness.assert_replicas_identical(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "steps"), tiers.first_of((3, 1), (2, 1), (1, 1), (2, 2), *[(n, 3) for n in (4,)])
)
@harness.in_one_process
def test_momentum_is_numpys(replicas, steps):
    x, y = harness.regression_data(EXAMPLES)

    def make():
        model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
        model.compile(optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    model = made(replicas, make, steps)
    kernel, bias = model.get_weights()
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    expected = momentum_in_numpy(kernel, bias, x, y, BATCH, 2, steps, 0.01, 0.9)
    harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")
    harness.assert_replicas_identical(model)
    assert int(model.optimizer.iterations) == 2 * 5


def decaying():
    schedule = optimizers.schedules.ExponentialDecay(0.1, 1, 0.7)
    return optimizers.SGD(schedule, momentum=0.9)


def several():
    one, two = optimizers.SGD(0.05, momentum=0.9), optimizers.Adam(0.02)
    return optimizers.MultiOptimizer(lambda v: one if "bias" in v.path else two)


# The model, its optimizer's options, and what `Replay` is told.
CASES = {
    "Adam, the norm of the delayed sum clipped": (
        dense, lambda: optimizers.Adam(0.01, global_clipnorm=0.1), {},
    ),
    "a decay of weights, and each gradient clipped": (
        dense, lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.1), {},
    ),
    "a schedule": (dense, decaying, {}),
    "batch normalization": (normalized, lambda: optimizers.SGD(0.05), {}),
    "a frozen layer": (frozen, lambda: optimizers.SGD(0.05, momentum=0.9), {}),
    "several optimizers": (dense, several, {}),
    "an average of weights": (
        dense, lambda: optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2), {},
    ),
    "a fixed loss scale": (dense, lambda: optimizers.SGD(0.05, loss_scale_factor=8.0), {}),
    "several steps in an execution": (
        lambda optimizer: dense(optimizer, steps_per_execution=2), lambda: optimizers.SGD(0.05), {},
    ),
    "compiled": (
        lambda optimizer: dense(optimizer, jit_compile=True), lambda: optimizers.SGD(0.05), {},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.first_of(*CASES))
@harness.in_one_process
def test_training_is_that_of_one_device_that_delays(case):
    make_model, make_optimizer, options = CASES[case]
    x, y = harness.regression_data(EXAMPLES)
    model = made(3, lambda: make_model(make_optimizer()))
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    replay = on_one_device(lambda: make_model(make_optimizer()), **options)
    if replay.model.optimizer.loss_scale_factor is not None:
        replay.model.optimizer.loss_scale_factor = None  # which the replay's gradients have not
    replay.fit(x, y, BATCH, epochs=2)
    if case == "an average of weights":
        replay.model.optimizer.finalize_variable_values(replay.model.trainable_variables)
    assert_as(model, replay)
    assert int(model.optimizer.iterations) == int(replay.model.optimizer.iterations)


@pytest.mark.slow
@pytest.mark.parametrize("steps", tiers.first_of(1, 2))
@harness.in_one_process
def test_windows_are_delayed_as_wholes(steps):
    """Five batches an epoch, so that epochs end within a window, which stays open."""
    x, y = harness.regression_data(EXAMPLES)
    options = {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5, "loss_scale_factor": 4.0}
    model = made(2, lambda: dense(optimizers.Adam(0.02, **options)), steps)
    model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    replay = on_one_device(
        lambda: dense(optimizers.Adam(0.02, global_clipnorm=0.5)), steps=steps, windows=2
    ).fit(x, y, BATCH, epochs=3)
    assert_as(model, replay)
    assert int(model.optimizer.iterations) == int(replay.model.optimizer.iterations) == 7


@pytest.mark.slow
@pytest.mark.parametrize("windows", tiers.first_of(1, 2))
@harness.in_one_process
def test_a_step_that_a_loss_scale_skips_leaves_what_waits(windows):
    """Its own gradients decide, on whichever replica they are not finite."""
    x, y = harness.regression_data(48)
    y[18] = 1e37  # in the third batch, on the first of two replicas
    inner = {"gradient_accumulation_steps": windows if windows > 1 else None}
    model = made(
        2,
        lambda: dense(
            optimizers.LossScaleOptimizer(
                optimizers.SGD(0.05, momentum=0.9, **inner), initial_scale=2.0**10
            )
        ),
    )
    replay = on_one_device(
        lambda: dense(optimizers.SGD(0.05, momentum=0.9)), windows=windows, scale=2.0**10
    )
    for start in range(0, 48, BATCH):
        batch = x[start : start + BATCH], y[start : start + BATCH]
        model.train_on_batch(*batch)
        replay.step(*batch)
        assert_as(model, replay)
        scales = {float(each) for each in harness.components(model.optimizer.dynamic_scale)}
        assert scales == {replay.scale}
    assert replay.scale == 2.0**9
    model.distribute_strategy.synchronize(model)
    replay.end()
    assert_as(model, replay)


@pytest.mark.slow
@harness.in_one_process
def test_rows_of_tables_wait_as_gradients_of_tables():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, (20, 4)), rng.normal(size=(20, 1)).astype("float32")

    def make():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(5, 3),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    model = made(3, make)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    assert_as(model, on_one_device(make).fit(x, y, 7, epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize("how", tiers.first_of("run", "partitioned", "eagerly"))
@harness.in_one_process
def test_loops_of_ones_own_delay(how):
    x, y = harness.regression_data(28)
    model = made(2, lambda: dense(optimizers.SGD(0.05, momentum=0.9), run_eagerly=how == "eagerly"))
    strategy = model.distribute_strategy

    def updated(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((y - model(x, training=True)) ** 2) / 7
        grads = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(grads, model.trainable_variables)

    @tf.function
    def run(x, y):
        strategy.run(updated, args=(x, y))

    partitioned = strategy.partitioned(updated)
    replay = on_one_device(lambda: dense(optimizers.SGD(0.05, momentum=0.9)))
    for start in range(0, 28, 7):
        batch = x[start : start + 7], y[start : start + 7]
        if how == "run":
            run(*map(strategy.split, batch))
        elif how == "partitioned":
            partitioned(*map(tf.constant, batch))
        else:
            model.train_on_batch(*batch)
        replay.step(*batch)
        assert_as(model, replay)
    strategy.synchronize(model.optimizer)
    replay.end()
    assert_as(model, replay)
    strategy.synchronize(model.optimizer)  # nothing waits
    assert_as(model, replay)


@pytest.mark.slow
@pytest.mark.parametrize("windows", tiers.first_of(1, 2))
@harness.in_one_process
def test_data_whose_length_is_not_known_end_without_an_update(windows):
    """TensorFlow would run what a step does without a batch, where it finds none."""
    x, y = harness.regression_data(32)

    def batches():
        for start in range(0, 32, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]

    own = {"gradient_accumulation_steps": windows if windows > 1 else None}
    model = made(2, lambda: dense(optimizers.SGD(0.05, momentum=0.9, **own)))
    specs = tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    model.fit(data, epochs=2, verbose=0)
    replay = on_one_device(lambda: dense(optimizers.SGD(0.05, momentum=0.9)), windows=windows)
    assert_as(model, replay.fit(x, y, BATCH, epochs=2))
    assert int(model.optimizer.iterations) == 8 // windows


class Sees(keras.callbacks.Callback):
    """Keeps what callbacks see at the end of an epoch, and a file in the middle of the second."""

    def __init__(self, path):
        super().__init__()
        self.path, self.weights, self.updates = path, [], []

    def on_train_batch_end(self, batch, logs=None):
        if len(self.weights) == 1 and batch == 1:
            self.model.save(self.path)
            self.within = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(self.model.get_weights())
        self.updates.append(int(self.model.optimizer.iterations))


@pytest.mark.slow
@harness.in_one_process
def test_an_epochs_end_sees_all_gradients_and_a_file_within_it_has_those_that_are_applied(tmp_path):
    x, y = harness.regression_data(EXAMPLES)

    def make():
        return dense(optimizers.Adam(0.02))

    model, seen = made(2, make), Sees(tmp_path / "within.keras")
    model.fit(
        x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, validation_data=(x, y),
        callbacks=[seen],
    )  # fmt: skip
    replay = on_one_device(make).fit(x, y, BATCH)
    assert seen.updates == [5, 10]
    for found, expected in zip(seen.weights[0], replay.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for start in (0, BATCH):
        replay.step(x[start : start + BATCH], y[start : start + BATCH])
    harness.start_over()
    kept = keras.models.load_model(seen.path)  # without a strategy
    harness.assert_close_arrays(kept.get_weights(), replay.model.get_weights(), 1e-5, "weights")
    for own, other in zip(kept.optimizer.variables, replay.model.optimizer.variables, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    assert int(kept.optimizer.iterations) == 6


@pytest.mark.slow
@harness.in_one_process
def test_a_model_is_used_between_updates_as_it_is():
    """What waits is in no weight; it is applied by the next step, or where a program says so."""
    x, y = harness.regression_data(16)
    model = made(2, lambda: dense(optimizers.SGD(0.05)))
    before = model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)
    model.train_on_batch(x, y)
    assert model.evaluate(x, y, verbose=0) == before[0]
    np.testing.assert_array_equal(model.predict(x, verbose=0), before[1])
    model.distribute_strategy.synchronize(model)
    assert model.evaluate(x, y, verbose=0) < before[0]


class Attaching(keras.callbacks.Callback):
    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def set_model(self, model):
        super().set_model(model)
        self.recorder.attach(model)


@pytest.mark.slow
@pytest.mark.parametrize("windows", tiers.first_of(None, 2))
@harness.in_one_process
def test_the_updates_of_an_epoch_and_their_bytes_are_counted(windows):
    """Of seven steps, of which the first one, or the first window, applies nothing."""
    x, y = harness.regression_data(28)
    model = made(2, lambda: dense(optimizers.SGD(0.1, gradient_accumulation_steps=windows)))
    recorder = recording.Recorder(model.distribute_strategy.extended.worker_devices)
    options = {"batch_size": 4, "epochs": 1, "verbose": 0}
    model.fit(x, y, callbacks=[Attaching(recorder)], **options)
    reading = recorder.read()
    weights = sum(4 * each.size for each in model.get_weights())
    assert list(reading.of("steps")) == [7, 7]
    assert list(reading.of("updates")) == [2, 2] if windows else [6, 6]
    assert list(reading.of("bytes_sent")) == [(3 if windows else 7) * weights] * 2


@pytest.mark.slow
@pytest.mark.parametrize("after", tiers.first_of(2, 3))
@harness.in_one_process
def test_a_checkpoint_keeps_what_waits(after, tmp_path):
    """On as many replicas training goes on with the same bits, on others to rounding."""
    x, y = harness.regression_data(64)
    options = {"batch_size": 8, "epochs": 2, "shuffle": True, "verbose": 0}

    def train(replicas, folder, *callbacks):
        windows = {"gradient_accumulation_steps": 2}
        model = made(replicas, lambda: dense(optimizers.Adam(0.01, **windows)), steps=2)
        checkpoint = tfdp.callbacks.Checkpoint(tmp_path / folder, every_steps=13)
        model.fit(x, y, callbacks=[checkpoint, *callbacks], **options)
        return model

    undisturbed = train(2, "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        train(2, "stopped", harness.Interrupts(14))  # step 13 is the fifth of the second epoch
    went_on = train(after, "stopped")
    harness.assert_replicas_identical(went_on)
    if after == 2:
        for one, other in zip(harness.state(went_on), harness.state(undisturbed), strict=True):
            for a, b in zip(harness.components(one), harness.components(other), strict=True):
                assert a.tobytes() == b.tobytes(), one.path
    harness.assert_close_arrays(went_on.get_weights(), undisturbed.get_weights(), 1e-5, "weights")


def before(node, function):
    """The operations of a function that must have ended before this one begins."""
    by_name, found, left = {each.name: each for each in function.node_def}, set(), [node]
    while left:
        inputs = {each.removeprefix("^").partition(":")[0] for each in left.pop().input}
        new = {each for each in inputs if each in by_name} - found
        left += [by_name[each] for each in new]
        found |= new
    return [by_name[each] for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("make", tiers.first_of(normalized, dense))
@harness.in_one_process
def test_the_sum_that_is_due_waits_for_nothing_of_the_step_and_none_of_it_for_the_sum(make):
    x, y = harness.regression_data(8)
    model = made(2, lambda: make(optimizers.Adam(0.01, global_clipnorm=1.0)))
    model.train_on_batch(x, y)
    first, *others = model.distribute_strategy.explain(model).collectives
    sent = sum(4 * each.shape.num_elements() for each in model.trainable_variables)
    assert first.kind == "update" and first.bytes_sent == sent
    assert len(others) == (2 if make is normalized else 1)
    assert all(each.kind == "sum" and each.size_bytes < 100 for each in others)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    program = model.distribute_strategy.partitioned(step)
    program(tf.constant(x), tf.constant(y))
    calls = program._latest.program
    (main,) = (each for each in calls.functions if each.signature.name == calls.name)
    (due,) = (each for each in calls.report.exchanged if each.kind == "update")
    nodes = {each.name: each for each in main.node_def}
    types = {each.op for each in before(nodes[due.node], main)}
    assert not {"MatMul", "ReadVariableOp", "AssignVariableOp"} & types
    for each in calls.report.exchanged:
        assert nodes[due.node] not in before(nodes[each.node], main)


@pytest.mark.slow
@harness.in_one_process
def test_updates_of_other_variables_are_refused():
    x, y = harness.regression_data(8)
    model = made(2, lambda: dense(optimizers.SGD(0.1)))
    strategy = model.distribute_strategy

    def step(x, y, first):
        variables = model.trainable_variables[: 2 if first else 4]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    program = strategy.partitioned(step)
    program(tf.constant(x), tf.constant(y), True)
    with pytest.raises(ValueError, match=r"must be of the same variables.*updates 4 variables wh"):
        program(tf.constant(x), tf.constant(y), False)


@harness.in_one_process
def test_a_variable_that_an_optimizer_does_not_know_is_an_error_of_keras():
    model = made(2, lambda: dense(optimizers.SGD(0.1)))
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables[:2])
    with pytest.raises(ValueError, match="Unknown variable"):
        model.train_on_batch(*harness.regression_data(8))


@pytest.mark.slow
@harness.in_one_process
def test_steps_of_other_variables_are_refused_where_all_has_been_applied_in_between():
    model = made(2, lambda: dense(optimizers.SGD(1.0)))
    strategy, optimizer = model.distribute_strategy, model.optimizer

    def step_of(variable):
        @strategy.partitioned
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) + tf.reduce_sum(variable)
            optimizer.apply(tape.gradient(loss, [variable]), [variable])

        return step

    with strategy.scope():
        optimizer.build(model.trainable_variables)
    x = tf.ones([4, *model.input_shape[1:]])
    first, second = map(step_of, model.trainable_variables[:2])
    first(x)
    strategy.synchronize(optimizer)
    with pytest.raises(ValueError, match=r"must be of the same variables.*for each set of var"):
        second(x)


class Often(keras.Model):
    """A model that updates twice in a step, and once more in a branch."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((5,)), layers.Dense(1)])

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data

        def updated():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((y - self(x)) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        first, _ = updated(), updated()
        tf.cond(tf.reduce_sum(x) > 0.0, updated, lambda: 0.0)
        return {"loss": first}


@pytest.mark.slow
@harness.in_one_process
def test_each_update_of_a_step_is_delayed_by_one_of_them():
    x, y = harness.regression_data(EXAMPLES)

    def make():
        model = Often()
        model.compile(optimizers.SGD(0.05, momentum=0.9))
        model.optimizer.build(model.trainable_variables)
        return model

    model = made(3, make)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    replay, branches = on_one_device(make), set()
    for _ in range(2):
        for start in range(0, EXAMPLES, BATCH):
            batch = x[start : start + BATCH], y[start : start + BATCH]
            branches.add(batch[0].sum() > 0)
            for _ in range(3 if batch[0].sum() > 0 else 2):
                replay.step(*batch)
        replay.end()
    assert branches == {True, False}
    assert_as(model, replay)


class Hiding(keras.Model):
    """A model whose step calls an optimizer that it has in an object of another kind."""

    def __init__(self, optimizer, known):
        super().__init__()
        self.inner, self.known = layers.Dense(1), known
        self.hidden = types.SimpleNamespace(optimizer=optimizer)

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.hidden.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.slow
@harness.in_one_process
def test_an_optimizer_that_an_epochs_end_would_not_find_is_refused():
    x, y = harness.regression_data(8)

    def hiding(is_known):
        optimizer = optimizers.SGD(0.1)
        model = Hiding(optimizer, [optimizer] if is_known else [])
        model.compile()
        return model

    found = made(2, lambda: hiding(True))
    found.fit(x, y, epochs=1, verbose=0)
    assert int(found.hidden.optimizer.iterations) == 1
    model = made(2, lambda: hiding(False))
    with pytest.raises(ValueError, match=r"is no attribute of 'hiding.*Assign it to an attribute"):
        model.fit(x, y, epochs=1, verbose=0)


@harness.in_one_process
def test_averages_of_weights_in_batches_that_apply_nothing_are_refused():
    options = {"gradient_accumulation_steps": 2, "use_ema": True}
    model = made(2, lambda: dense(optimizers.SGD(0.1, **options)))
    with pytest.raises(ValueError, match=r"in each batch, also while a window waits.*Leave one"):
        model.train_on_batch(*harness.regression_data(8))


class Unused(layers.Layer):
    """A product, and a weight that has no gradient."""

    def build(self, shape):
        self.unused = self.add_weight(shape=[3], initializer="ones")
        self.kernel = self.add_weight(shape=[shape[-1], 1])

    def call(self, x):
        return x @ self.kernel


@pytest.mark.slow
@harness.in_one_process
def test_a_variable_without_a_gradient_stays_from_epoch_to_epoch():
    x, y = harness.regression_data(14)

    def make():
        model = keras.Sequential([keras.Input(x.shape[1:]), Unused()])
        model.compile(optimizers.AdamW(0.01, weight_decay=1.0), "mse")
        return model

    model = made(2, make)
    model.fit(x, y, batch_size=7, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.layers[0].unused, np.ones(3))
    assert not np.array_equal(model.layers[0].kernel, on_one_device(make).model.layers[0].kernel)


@pytest.mark.parametrize("synchronization", [Delayed(), Asynchronous(2)])
@harness.in_one_process
def test_an_update_outside_of_a_step_is_refused(synchronization):
    strategy = harness.strategy(2, synchronization=synchronization)
    with strategy.scope():
        model = dense(optimizers.SGD(1.0))
    variables = model.trainable_variables
    with pytest.raises(ValueError, match=r"must be part of a step.*`@strategy.partitioned`"):
        model.optimizer.apply([tf.ones(each.shape) for each in variables], variables)
