"""Models with a `train_step` of their own, and models built lazily."""

import functools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

UNEVEN = [8, 3, 1, 5]


class OwnStep(keras.Model):
    """A user's `train_step` with a raw mean as its loss."""

    def __init__(self, divided=False, scaled=False, raw_logs=False):
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.out = layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.divided, self.scaled, self.raw_logs = divided, scaled, raw_logs

    def build(self, shape):
        self.hidden.build(shape)
        self.out.build((None, 6))

    def call(self, x):
        return self.out(self.hidden(x))

    @property
    def metrics(self):
        return [] if self.raw_logs else [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            mean = ops.mean(ops.square(y - self(x, training=True)))
            loss = mean
            if self.divided:  # as tf.distribute's guide has it
                loss = loss / tf.distribute.get_strategy().num_replicas_in_sync
            if self.scaled:
                loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        if self.raw_logs:
            return {"loss": mean}
        self.tracker.update_state(mean)
        return {"loss": self.tracker.result()}


class TracedStep(OwnStep):
    """The same as a function of its own."""

    @tf.function
    def train_step(self, data):
        return super().train_step(data)


class OwnStepOfKerasLosses(OwnStep):
    """The same with the compiled loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"size": ops.sum(ops.ones_like(y)) * 0.0 + 1.0}


STEPS = {
    "plain": OwnStep,
    "as a tf.function": TracedStep,
    "divided by the replicas": functools.partial(OwnStep, divided=True),
    "with a loss scale": functools.partial(OwnStep, scaled=True),
    "with raw logs": functools.partial(OwnStep, raw_logs=True),
    "with the compiled loss": OwnStepOfKerasLosses,
}


@pytest.mark.parametrize("kind", tiers.cases(STEPS, ["with the compiled loss"]))
def test_an_own_train_step_trains_as_on_one_device(kind, trains_as_one_device):
    x, y = harness.regression_data(sum(UNEVEN))

    def build():
        model = STEPS[kind]()
        model.build((None, 5))
        optimizer = optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
        if model.scaled:
            optimizer = optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
        model.compile(optimizer, loss="mse")
        return model

    def use(model):
        return model.fit(harness.batches_of(UNEVEN, x, y), epochs=2, verbose=0).history

    trains_as_one_device(build, use)


class Adversaries(keras.Model):
    """Two networks, two optimizers, no `call`."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
        self.critic = keras.Sequential(
            [keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)]
        )

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.generator_loss = keras.metrics.Mean(name="generator_loss")

    @property
    def metrics(self):
        return [self.critic_loss, self.generator_loss]

    def train_step(self, data):
        noise, real = data
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise))
            loss = ops.mean(ops.softplus(-self.critic(real))) + ops.mean(ops.softplus(fake))
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(loss, variables), variables)
        self.critic_loss.update_state(loss)
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise))
            loss = ops.mean(ops.softplus(-fake))
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(loss, variables), variables)
        self.generator_loss.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def test_two_optimizers_in_one_step_train_as_on_one_device(trains_as_one_device):
    noise, _ = harness.regression_data(sum(UNEVEN))
    real = np.random.default_rng(1).normal(2.0, 1.0, (len(noise), 3)).astype("float32")

    def build():
        model = Adversaries()
        model.compile(
            optimizers.Adam(0.02, clipnorm=0.1),
            optimizers.SGD(0.1, gradient_accumulation_steps=3),
        )
        return model

    def use(model):
        return model.fit(harness.batches_of(UNEVEN, noise, real), epochs=2, verbose=0).history

    outcome, _ = trains_as_one_device(build, use)
    assert sum(map(len, outcome.slots.values())) > 10, (
        "Both optimizers' variables must be compared."
    )


class Lazy(keras.Model):
    """Neither the model nor its optimizer exists before the first batch."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.out = layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


@pytest.mark.parametrize("step", tiers.first_of("an own step", "Keras' own step"))
def test_what_is_built_lazily_trains_as_on_one_device(step, trains_as_one_device):
    x, y = harness.regression_data(21)

    def build():
        model = Lazy() if step == "Keras' own step" else OwnStep()
        model.compile(optimizers.Adam(0.05), loss="mse")
        assert not model.built
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, x, y))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2], ids=["2-replicas"])
@pytest.mark.parametrize("kind", tiers.first_of("Keras' own step", "an own step"))
def test_running_eagerly_trains_as_on_one_device(kind, trains_as_one_device):
    x, y = harness.regression_data(13)

    def build():
        model = harness.dense_model() if kind == "Keras' own step" else OwnStep()
        optimizer = optimizers.Adam(0.05, global_clipnorm=0.3, gradient_accumulation_steps=2)
        model.build((None, 5))
        model.compile(optimizer, loss="mse", run_eagerly=True)
        return model

    def use(model):
        return harness.fit_arrays(model, x, y, batch_size=4)

    trains_as_one_device(build, use)


@pytest.mark.exhaustive("test_running_eagerly_trains_as_on_one_device")
def test_running_eagerly_in_batches_of_one_size_trains_as_on_one_device(trains_as_one_device):
    trains_as_one_device(
        lambda: harness.dense_model(run_eagerly=True),
        lambda model: harness.fit_arrays(model, *harness.regression_data(14)),
    )


class WithALoop(OwnStep):
    """Loops over a tensor in one of its steps, which AutoGraph alone makes of Python's `for`."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def loop(self, where):
        if where == self.where:
            for _ in tf.range(3):
                pass

    def train_step(self, data):
        self.loop("fit")
        return super().train_step(data)

    def test_step(self, data):
        self.loop("evaluate")
        return super().test_step(data)

    def call(self, x):
        self.loop("predict")
        return super().call(x)


@pytest.mark.parametrize("where", tiers.first_of("fit", "evaluate", "predict"))
def test_autograph_leaves_steps_alone_as_on_one_device(where, replicas):
    x, y = harness.regression_data(4)
    for count in (None, replicas):
        model = harness.build_in_scope(lambda: compiled(WithALoop(where)), count)
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            getattr(model, where)(*((x,) if where == "predict" else (x, y)), verbose=0)


def test_autograph_converts_a_partitioned_function_as_a_tf_function():
    strategy = harness.strategy(2)

    @strategy.partitioned
    def doubled_thrice(x):
        for _ in tf.range(3):
            x = 2.0 * x
        return x

    assert doubled_thrice(tf.ones([3])).numpy().tolist() == [8.0] * 3


def compiled(model):
    model.compile("sgd", "mse")
    return model
