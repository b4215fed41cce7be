"""`shard`: each replica keeps and updates a part, and all is as on one device."""

import math
import os
import pathlib
import re
import subprocess
import sys

import clusters
import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

import tfdp
from tfdp.compression import TopK
from tfdp.keras.saving import model_files
from tfdp.keras.trainer import rank_agreement
from tfdp.optimizers import LAMB, LARS
from tfdp.strategy import sharded_variable


class Damped(optimizers.Optimizer):
    """A user's optimizer, not linear in the gradient, with a slot that it makes by itself."""

    def __init__(self, learning_rate=0.05, **kwargs):
        super().__init__(learning_rate, **kwargs)

    def build(self, variables):
        super().build(variables)
        self.momentums = [self.add_variable(v.shape, name="momentum") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, 0.5 * momentum + gradient / (ops.abs(gradient) + 0.1))
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * momentum)


class Named(optimizers.SGD):
    """Notes the names of what it updates."""

    names = []

    def update_step(self, gradient, variable, learning_rate):
        type(self).names.append(variable.name)
        super().update_step(gradient, variable, learning_rate)


class NovoGrad(optimizers.Optimizer):
    """Keeps a number for each variable: a mean of squared norms (1905.11286)."""

    def __init__(self, learning_rate=0.05, **kwargs):
        super().__init__(learning_rate, **kwargs)

    def build(self, variables):
        super().build(variables)
        self.moments = [self.add_variable((), name="moment") for _ in variables]
        self.counts = [self.add_variable((), dtype="int64", name="count") for _ in variables]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        moment = self.moments[index]
        square = ops.cast(ops.sum(ops.square(gradient)), "float32")
        self.assign(moment, 0.5 * moment + 0.5 * square)
        self.assign_add(self.counts[index], 1)
        step = ops.cast(learning_rate, "float32") / (ops.sqrt(moment) + 1e-7)
        self.assign_sub(variable, ops.cast(step, variable.dtype) * gradient)


class RowWise(optimizers.Optimizer):
    """Keeps a number for each row, as for embeddings; there are rows where there are columns."""

    def __init__(self, learning_rate=0.05, **kwargs):
        super().__init__(learning_rate, **kwargs)

    def build(self, variables):
        super().build(variables)
        self.squares = [
            self.add_variable(v.shape[:1], dtype=v.dtype, name="square") for v in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        square = self.squares[self._get_variable_index(variable)]
        rows = ops.reshape(gradient, (ops.shape(square)[0], -1))
        self.assign_add(square, ops.mean(ops.square(rows), 1))
        step = rows / ops.expand_dims(ops.sqrt(square) + 1e-7, 1)
        step = ops.cast(learning_rate, variable.dtype) * ops.reshape(step, ops.shape(gradient))
        self.assign_sub(variable, step)


class OwnApply(optimizers.SGD):
    """Uses gradients before the update."""

    def apply(self, grads, trainable_variables=None):
        super().apply([2.0 * grad for grad in grads], trainable_variables)


class OwnUpdates(optimizers.SGD):
    """Updates several variables together."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads[::-1], trainable_variables[::-1], learning_rate)


class Counting(optimizers.SGD):
    """Keeps a state for all variables that each update changes."""

    def build(self, variables):
        super().build(variables)
        self.count = self.add_variable((), name="count")

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(self.count, 1.0)
        super().update_step(gradient, variable, learning_rate / self.count)


def windows(kind, **options):
    return kind(gradient_accumulation_steps=3, **options)


def scaled(inner):
    return optimizers.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=3)


# Every way in which an optimizer uses gradients, or keeps state.
CASES = {
    "windows under a loss scale, clipped together": lambda: scaled(
        windows(optimizers.Adam, learning_rate=0.05, global_clipnorm=0.3)
    ),
    "whole variables, an average that overwrites": lambda: LAMB(
        0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "clipped one by one": lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.3),
    "clipped values": lambda: optimizers.SGD(0.1, momentum=0.9, clipvalue=0.1),
    "LARS in windows": lambda: windows(LARS, learning_rate=0.5, trust_coefficient=0.1),
    "Adafactor": lambda: optimizers.Adafactor(0.05),
    "decay with exclusions": lambda: excluding(optimizers.AdamW(0.02, weight_decay=0.2)),
    "an average in windows": lambda: windows(
        optimizers.Adam, learning_rate=0.05, use_ema=True, ema_overwrite_frequency=2
    ),
    "a user's own": lambda: Damped(weight_decay=0.1, global_clipnorm=0.5),
    "a number for each variable": NovoGrad,
    "a number for each row": RowWise,
    "gradients that its own `apply` uses": lambda: OwnApply(0.1, clipnorm=0.5),
    "updates of its own": lambda: OwnUpdates(0.1, momentum=0.5),
    "a state that each update changes": lambda: Counting(0.1),
    "a state for all variables": lambda: optimizers.Nadam(0.02),
    "a state that begins as the weights": lambda: optimizers.ScheduleFreeAdamW(0.02),
    "two optimizers": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(windows(optimizers.SGD), {".*kernel": optimizers.Lamb(0.02)})
    ),
}
LATER = {  # Keras has these since 3.14
    "a state that begins as the weights": "ScheduleFreeAdamW",
    "two optimizers": "MultiOptimizer",
}
CASES = {name: make for name, make in CASES.items() if hasattr(optimizers, LATER.get(name, "SGD"))}
# Optimizers that are not elementwise, of which each replica keeps whole variables.
MODES = ("gradients", "optimizer", "parameters")
FAST = {
    ("gradients", "windows under a loss scale, clipped together"),
    ("optimizer", "whole variables, an average that overwrites"),
    ("gradients", "a number for each variable"),
    ("parameters", "windows under a loss scale, clipped together"),
    ("parameters", "whole variables, an average that overwrites"),
}


def excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.fixture
def shard(monkeypatch, request):
    """Makes the strategies of `harness` shard."""
    mode = getattr(request, "param", "gradients")
    monkeypatch.setattr(harness, "SHARD", mode)
    return mode


@pytest.mark.telling
@pytest.mark.parametrize(
    ("shard", "case"),
    tiers.cases([(mode, case) for case in CASES for mode in MODES], FAST),
    indirect=["shard"],
)
def test_each_step_is_that_of_one_device(shard, case, trains_as_one_device):
    x, y = harness.regression_data(22)

    def use(model):
        trace = harness.Trace()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
        model.fit(data, epochs=2, callbacks=[trace], verbose=0)
        return trace.steps

    trains_as_one_device(lambda: harness.dense_model(CASES[case]()), use)


def model_of(optimizer, width=8):
    """A model of a kernel, a bias, and a small kernel."""
    model = keras.Sequential(
        [keras.Input([6]), layers.Dense(width, activation="tanh"), layers.Dense(2, use_bias=False)]
    )
    model.compile(optimizer, "mse")
    return model


def built(optimizer, mode, replicas=2):
    model = harness.build_in_scope(lambda: model_of(optimizer()), replicas)
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return model


BOTH = pytest.mark.parametrize("shard", tiers.first_of("parameters", "gradients"), indirect=True)


@pytest.mark.slow
@harness.in_one_process
@BOTH
@pytest.mark.parametrize("count", tiers.first_of(2, 4))
def test_each_replica_holds_its_part_of_all_state(count, shard):
    make = lambda: windows(optimizers.Adam, use_ema=True)  # noqa: E731
    model = built(make, shard, count)
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    held = [0] * count
    parts = [variable for variable in model.optimizer.variables if len(variable.shape)]
    if shard == "parameters":
        parts += model.trainable_variables
    for variable in parts:
        for rank, own in enumerate(harness.components(variable)):
            held[rank] += own.size
    # Two moments, an average and an accumulated gradient; and the weights themselves.
    kept = (5 if shard == "parameters" else 4) * weights
    assert sum(held) == kept
    assert max(held) <= 1.1 * kept / count


@pytest.mark.slow
@harness.in_one_process
def test_an_update_sees_the_variables_names(shard):
    model = built(lambda: Named(0.1), shard)
    Named.names.clear()
    model.fit(np.ones([4, 6]), np.ones([4, 2]), verbose=0)
    names = {v.value.name.split("/replica_1")[0] for v in model.trainable_variables}
    assert {name.split("/part_1")[0] for name in Named.names} <= names | {
        name.split(":")[0] for name in names
    }


@pytest.mark.slow
@harness.in_one_process
def test_norms_of_float64_are_of_float64(shard):
    model = harness.build_in_scope(
        lambda: keras.Sequential([keras.Input([4]), layers.Dense(2, dtype="float64")]), 2
    )
    with model.distribute_strategy.scope():
        optimizer = optimizers.SGD(1.0, global_clipnorm=1.0)
        optimizer.build(model.trainable_variables)
    kernel, bias = model.trainable_variables
    kernel.assign(np.zeros([4, 2]))
    gradient = np.random.default_rng(0).normal(size=(4, 2))

    def step():
        # Half of it on each replica.
        optimizer.apply([tf.constant(gradient / 2), tf.zeros([2], tf.float64)], [kernel, bias])

    tf.function(lambda: model.distribute_strategy.run(step))()
    expected = -gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(kernel.numpy(), expected, rtol=1e-14)


@pytest.mark.slow
@harness.in_one_process
def test_what_is_kept_by_rows_is_cut_with_the_rows(shard):
    model = harness.build_in_scope(
        lambda: keras.Sequential([keras.Input([12]), layers.Dense(4, use_bias=False)]), 2
    )
    with model.distribute_strategy.scope():
        optimizer = RowWise()
        optimizer.build(model.trainable_variables)
    assert [own.shape for own in harness.components(optimizer.squares[0])] == [(6,), (6,)]


@harness.in_one_process
def test_ranks_compare_how_they_have_cut(shard):
    described = rank_agreement.of_variables(built(lambda: optimizers.Adam(0.1), shard))
    kept = [text for name, text in described.items() if name.startswith("slot")]
    assert "float32 [6, 8], sharded along axis 0 at (0, 3, 6)" in kept


@pytest.mark.exhaustive("test_each_step_is_that_of_one_device")
def test_averages_are_swapped_in(shard, trains_as_one_device):
    trains_as_one_device(
        lambda: harness.dense_model(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)),
        lambda model: harness.fit_arrays(
            model, epochs=2, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
        ),
    )


def test_signs_of_gradients_train_as_on_one_device(shard, trains_as_one_device):
    class Signed(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            signs = [tf.sign(gradient) for gradient in gradients]
            self.optimizer.apply(signs, self.trainable_variables)
            return {"loss": loss}

    def build():
        inputs = keras.Input([5])
        model = Signed(inputs, layers.Dense(3)(inputs))
        model.compile(optimizers.Adam(0.05), "mse")
        return model

    trains_as_one_device(build)


@pytest.mark.parametrize(
    ("vocabulary", "clip"),
    tiers.first_of((9, "global_clipnorm"), (9, "clipnorm"), (4, "clipnorm"), (9, "clipvalue")),
    ids=["together", "rows", "columns", "values"],
)
def test_sparse_gradients_are_updated_as_on_one_device(
    vocabulary, clip, shard, trains_as_one_device
):
    ids = np.random.default_rng(0).integers(0, 4, (21, 4)).astype("int32")
    ids[:, 1] = ids[:, 0]  # Adam squares each of a row's gradients by itself

    def build():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(vocabulary, 4 if vocabulary == 9 else 12),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.Adam(0.05, **{clip: 0.2}), loss="mse")
        return model

    targets = ids.sum(1, keepdims=True).astype("float32") / 5
    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))


class Blocks(layers.Layer):
    """Blocks whose weights are stacked in one variable."""

    def build(self, shape):
        size = shape[-1]
        self.kernels = self.add_weight(name="kernels", shape=(3, size, size))
        self.biases = self.add_weight(name="biases", shape=(3, size))

    def call(self, x):
        weights = tf.convert_to_tensor(self.kernels), tf.convert_to_tensor(self.biases)
        return tf.scan(lambda h, own: tf.tanh(h @ own[0] + own[1]), weights, initializer=x)[-1]


@pytest.mark.parametrize("shard", tiers.first_of("parameters", "gradients"), indirect=True)
def test_a_loop_over_weights_that_are_stacked_trains_as_on_one_device(shard, trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input([5]), Blocks(), layers.Dense(1)])
        model.compile(optimizers.Adam(0.05), "mse")
        return model

    trains_as_one_device(build)


class Positions(layers.Layer):
    """Adds rows of a table that are the same for all examples, one of them twice."""

    def build(self, shape):
        self.table = self.add_weight(name="table", shape=(6, 3), initializer="ones")

    def call(self, x):
        return x * ops.take(self.table, [0, 1, 1, 4], axis=0)


@pytest.mark.exhaustive("test_sparse_gradients_are_updated_as_on_one_device")
@pytest.mark.parametrize("steps", [None, 2])
def test_rows_that_are_the_same_for_all_examples_count_once(steps, shard, trains_as_one_device):
    def build():
        model = keras.Sequential(
            [keras.Input((4, 3)), Positions(), layers.GlobalMaxPooling1D(), layers.Dense(1)]
        )
        model.compile(optimizers.Adam(0.05, gradient_accumulation_steps=steps), loss="mse")
        return model

    x = np.random.default_rng(0).normal(size=(21, 4, 3)).astype("float32")
    trains_as_one_device(build, lambda model: harness.fit_arrays(model, x, x.max((1, 2))))


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize("eager", tiers.first_of(False, True), ids=["graph", "eager"])
def test_a_loop_of_ones_own_updates_parts(eager, shard):
    x, y = harness.regression_data(8)

    def weights(replicas):
        model = harness.build_in_scope(lambda: harness.dense_model(optimizers.Adam(0.05)), replicas)
        strategy = tf.distribute.get_strategy() if replicas is None else model.distribute_strategy

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x) - y) ** 2) / 8
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run = tf.function(lambda *batch: strategy.run(step, args=batch))
        if eager:
            run = lambda *batch: strategy.run(step, args=batch)  # noqa: E731
        batch = (tf.constant(x), tf.constant(y)) if replicas is None else strategy.split((x, y))
        for _ in range(3):
            run(*batch)
        if replicas is not None:
            harness.assert_replicas_identical(model)
        return harness.weights(model)

    harness.assert_close_arrays(weights(2), weights(None), 1e-5, "weights")


# ---- files


@pytest.mark.slow
@BOTH
def test_a_saved_model_is_an_ordinary_file_and_goes_on_sharded(shard, tmp_path):
    make = lambda: windows(optimizers.Adam, learning_rate=0.05, use_ema=True)  # noqa: E731
    model = built(make, shard)
    x = np.random.default_rng(0).normal(size=(20, 6)).astype("float32")
    fit = {"batch_size": 5, "shuffle": False, "verbose": 0}
    model.fit(x, x[:, :2], **fit)
    path = tmp_path / "model.keras"
    model.save(path)
    kept = [np.asarray(v.numpy()) for v in model.optimizer.variables]
    with model.distribute_strategy.scope():
        again = keras.models.load_model(path)
    for own, other in zip(kept, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(own, other.numpy())
    plain = keras.models.load_model(path)
    for own, other in zip(kept, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(own, other.numpy())
    model.fit(x, x[:, :2], **fit)
    again.fit(x, x[:, :2], **fit)
    for own, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize(
    ("before", "after"),
    tiers.first_of(
        (("gradients", 2), ("optimizer", 3)),
        (("gradients", 3), (None, 2)),
        ((None, 2), ("gradients", 2)),
        (("parameters", 2), ("parameters", 3)),
        (("parameters", 3), (None, 2)),
        (("optimizer", 2), ("parameters", 2)),
    ),
)
def test_a_checkpoint_of_other_shards_is_gone_on_from(before, after, monkeypatch, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")

    def train(mode, replicas, epochs, folder):
        monkeypatch.setattr(harness, "SHARD", mode)
        model = harness.build_in_scope(
            lambda: model_of(windows(optimizers.Adam, learning_rate=0.05, use_ema=True)), replicas
        )
        kept = [tfdp.callbacks.Checkpoint(folder, every_epochs=1)]
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        model.fit(
            x, x[:, :2], batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=kept
        )
        return harness.weights(model)

    train(*before, 1, tmp_path / "one")  # five steps: a window is open
    continued = train(*after, 2, tmp_path / "one")
    undisturbed = train(*before, 2, tmp_path / "two")
    harness.assert_close_arrays(continued, undisturbed, 1e-5, "weights")


@BOTH
def test_tensorflows_own_checkpoints_hold_wholes(shard, tmp_path):
    model = built(lambda: optimizers.Adam(0.1), shard)
    objects = {"optimizer": model.optimizer, "model": model}
    kept = [model.optimizer.variables[3], model.trainable_variables[0]]
    values = []
    for each in kept:
        values.append(np.arange(np.prod(each.shape), dtype="float32").reshape(each.shape))
        each.assign(values[-1])
    path = tf.train.Checkpoint(**objects).write(str(tmp_path / "kept"))
    for each, value in zip(kept, values, strict=True):
        each.assign(np.zeros_like(value))
    tf.train.Checkpoint(**objects).read(path).assert_existing_objects_matched()
    for each, value in zip(kept, values, strict=True):
        np.testing.assert_array_equal(each.numpy(), value)


class Adversaries(keras.Model):
    """Has two optimizers of its own, and a compiled model within."""

    def __init__(self):
        super().__init__()
        self.maker, self.critic = layers.Dense(4), model_of(optimizers.Adam(0.1), 6)
        self.optimizers_of = {"maker": optimizers.Adam(0.1), "critic": optimizers.Adam(0.2)}

    def build(self, shape):
        self.maker.build(shape)
        self.built = True

    def call(self, x):
        return self.critic(self.maker(x))


@pytest.mark.slow
@harness.in_one_process
def test_all_optimizers_of_a_model_are_gathered_for_a_file_and_none_for_an_export(shard):
    model = harness.build_in_scope(Adversaries, 2)
    with model.distribute_strategy.scope():
        model.build((None, 6))
        optimizer = model.optimizers_of["maker"]
        optimizer.build(model.maker.trainable_variables)
        model.critic.optimizer.build(model.critic.trainable_variables)
    gathered = {id(value) for value in model_files._summed_variables(model, True)}
    for each in (optimizer, model.critic.optimizer):
        cut = [v.value for v in each.variables if harness.is_parted(v)]
        assert cut and all(id(value) in gathered for value in cut)
    assert not model_files._summed_variables(model, False)


@pytest.mark.slow
@harness.in_one_process
@BOTH
def test_an_export_is_whole_or_refused(shard, tmp_path):
    model = built(lambda: optimizers.Adam(0.1), shard)
    x = np.ones([4, 6], "float32")
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), rtol=1e-5)
    with pytest.raises(ValueError, match=r"Use `model\.export"):
        tf.saved_model.save(model, str(tmp_path / "saved"))


@harness.in_one_process
def test_a_step_sends_one_and_a_half_times_a_sum_of_gradients():
    """Two gathers of weights and one scatter of gradients are three halves of an all-reduce."""

    def sent(**options):
        strategy = harness.strategy(2, **options)
        with strategy.scope():
            model = keras.Sequential([keras.Input([64])])
            for _ in range(4):
                model.add(layers.Dense(64, use_bias=False))
            model.compile("sgd", "mse")
        x = np.ones([4, 64], "float32")
        model.fit(x, x, verbose=0)
        found = strategy.explain(model).collectives
        return sum(each.bytes_sent for each in found if (each.bytes_sent or 0) > 1000)

    # The first layer's weights have no use in the backward pass, and the last one's are there.
    expected = sent(shard=None) * (3 * 4 - 2) / (2 * 4)
    assert sent(shard="parameters") == pytest.approx(expected, rel=1e-3)


@harness.in_one_process
def test_gradients_that_fill_no_bucket_wait_for_each_other():
    strategy = harness.strategy(2, shard="parameters", bucket_bytes=2**14)
    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), *[layers.Dense(64) for _ in range(4)]])
        model.compile("sgd", "mse")
    x = np.ones([4, 64], "float32")
    model.fit(x, x, verbose=0)
    summed = [each for each in strategy.explain(model).collectives if each.kind == "sum of parts"]
    kernels, biases = 64 * 64 * 4, 64 * 4
    assert [each.size_bytes for each in summed] == [kernels] * 4 + [4 * biases]


@harness.in_one_process
def test_a_replicas_function_may_read_no_part_of_a_weight():
    strategy = harness.strategy(2, shard="parameters")
    with strategy.scope():
        model = model_of(optimizers.SGD(0.1))
    with pytest.raises(ValueError, match=r"Train by `model\.fit`, or make the step"):
        strategy.run(lambda: model(np.ones([2, 6], "float32")))


@harness.in_one_process
def test_small_weights_stay_whole(monkeypatch):
    monkeypatch.setattr(sharded_variable, "SMALLEST_SHARD", 2**16)
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="parameters")
    with strategy.scope():
        model = keras.Sequential([keras.Input([256]), layers.Dense(256), layers.Dense(64)])
        counter = tf.Variable(tf.zeros([256, 256]), trainable=False)
    assert [harness.is_parted(each) for each in model.weights] == [True, False, False, False]
    assert not hasattr(counter, "sharding")


def windows_of_two(**options):
    return optimizers.Adam(0.05, gradient_accumulation_steps=2, **options)


@harness.in_one_process
@pytest.mark.parametrize("shard", tiers.first_of("parameters", "optimizer"), indirect=True)
@pytest.mark.parametrize(
    "make",
    [
        *tiers.first_of(
            lambda: scaled(optimizers.SGD(0.1, momentum=0.9, clipnorm=0.3)),
            windows_of_two,
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=97.0),
        ),
    ],
    ids=["under a loss scale", "in windows", "rounded once"],
)
def test_gradients_that_are_cast_are_those_of_a_cast_of_wholes(make, shard):
    """Of two replicas' terms each sum is one addition, so that both have the same bits."""
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")

    def trained(**options):
        strategy = harness.strategy(2, compression=tfdp.compression.Cast("bfloat16"), **options)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = model_of(make())
        model.fit(x, x[:, :2], batch_size=8, epochs=4, shuffle=False, verbose=0)
        return model.get_weights(), strategy.explain(model).collectives

    cut, collectives = trained(shard=shard)
    whole, _ = trained(shard=None)
    for own, expected in zip(cut, whole, strict=True):
        np.testing.assert_allclose(own, expected, rtol=2e-6, atol=1e-7)
    scattered = [each for each in collectives if each.kind == "sum of parts"]
    assert scattered and all("bfloat16" in each.largest for each in scattered)


@harness.in_one_process
def test_a_cast_that_loses_small_numbers_is_refused_where_no_scale_protects_them():
    strategy = harness.strategy(2, compression=tfdp.compression.Cast("float16"), shard="optimizer")
    with strategy.scope():
        model = model_of(scaled(windows_of_two()))
    with pytest.raises(ValueError, match="that a loss scale protects must travel with it"):
        model.fit(np.ones([4, 6]), np.ones([4, 2]), verbose=0)


def test_products_of_lent_weights_are_fused_as_on_one_device(monkeypatch):
    """TensorFlow rounds a product in 16 bits once if it adds the bias at once, and else twice."""
    x = np.random.default_rng(0).normal(size=(12, 8)).astype("float32")

    def predicted(strategy):
        monkeypatch.setattr(sharded_variable, "SMALLEST_SHARD", 30)  # kernels, and no bias
        with strategy.scope():
            model = keras.Sequential([keras.Input([8])])
            for _ in range(5):
                model.add(layers.Dense(8, activation="relu", dtype="mixed_bfloat16"))
        draws = np.random.default_rng(5)
        model.set_weights([draws.normal(size=w.shape) for w in model.get_weights()])
        return np.float32(model.predict(x, verbose=0))

    cut = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="parameters")
    expected = predicted(tf.distribute.get_strategy())
    np.testing.assert_array_equal(predicted(cut), expected)


SCRIPT = pathlib.Path(__file__).parent / "scripts" / "trains_within_a_limit.py"


@pytest.mark.exhaustive("test_each_step_is_that_of_one_device")
@pytest.mark.multiprocess
@pytest.mark.timeout(620)
@harness.in_one_process
def test_four_ranks_train_what_does_not_fit_on_one():
    given = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    environ = {**os.environ, **given, "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
    ended = {}
    for ranks, words in ((1, ["1200"]), (4, ["1200", "parameters"])):
        command = [*clusters.tfdp_run(ranks), sys.executable, str(SCRIPT), *words]
        ended[ranks] = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
    assert ended[1].returncode and "TRAINED" not in ended[1].stdout
    assert ended[4].returncode == 0, ended[4].stderr[-3000:]
    losses = re.findall(r"TRAINED 100754433 (\S+)", ended[4].stdout)
    assert len(losses) == 4 and len(set(losses)) == 1


# ---- bad input


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shard": "all"},
            "'gradients', 'parameters', but received 'all'",
        ),
        (
            {"shard": "optimizer", "synchronization": tfdp.synchronization.LocalSGD(every=2)},
            "one set of weights after each update",
        ),
        (
            {"shard": "gradients", "compression": tfdp.compression.ErrorFeedback(TopK(0.1))},
            "sums parts of gradients, as they are, cast, or in blocks",
        ),
        ({"shard": "optimizer", "devices": ["CPU:0"]}, "there is one replica"),
    ],
    ids=["unknown", "synchronization", "compression", "one replica"],
)
def test_options_that_do_not_go_together_say_so(options, message):
    with pytest.raises(ValueError, match=message):
        tfdp.DataParallelStrategy(**{"devices": ["CPU:0", "CPU:1"], **options})
