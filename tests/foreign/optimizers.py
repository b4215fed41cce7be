"""What is done to updates: averages, accumulation, decay, clipping, schedules, precision."""

import keras
import tensorflow as tf
from foreign.data import BATCH_SIZE, FEATURES, TARGETS
from foreign.table import agrees
from keras import layers, ops

import tfdp

HALF = 1e-3  # What is computed in float16 is rounded so.


def network():
    """A small network."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(4, "tanh"), layers.Dense(1)])


def trained(strategy, optimizer, callbacks=None, epochs=2, **compile_options):
    """Trains a small network by what `optimizer` returns."""
    with strategy.scope():
        model = network()
        model.compile(optimizer(), "mse", **compile_options)
    fit = {"callbacks": callbacks, "epochs": epochs, "verbose": 0}
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, **fit), model.optimizer


@agrees()
def averaged_weights(strategy):
    """Keeps a moving average of the weights, and ends with it."""
    return trained(
        strategy,
        lambda: keras.optimizers.AdamW(
            1e-2, weight_decay=1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        ),
    )


@agrees()
def accumulated_gradients(strategy):
    """Collects two small batches for an update, and clips what they add up to."""
    with strategy.scope():
        model = network()
        adam = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2, global_clipnorm=0.1)
        model.compile(adam, "mse")
    return model, model.fit(FEATURES, TARGETS, batch_size=4, verbose=0), model.optimizer


@agrees()
def clipped_values(strategy):
    """Clips each number of a gradient, in an optimizer with a schedule."""
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 4, warmup_target=0.1, warmup_steps=2)
    return trained(strategy, lambda: keras.optimizers.Lion(schedule, clipvalue=0.02))


@agrees()
def decay_with_exceptions(strategy):
    """Decays all weights but biases; the norm of all gradients is clipped."""

    def optimizer():
        adam = keras.optimizers.AdamW(1e-2, weight_decay=0.1, global_clipnorm=0.2)
        adam.exclude_from_weight_decay(var_names=["bias"])
        return adam

    return trained(strategy, optimizer)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that rises, and then falls with the root of the step."""

    def __init__(self, width, warmup_steps):
        self.width, self.warmup_steps = width, warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.width**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)


@agrees()
def own_schedule(strategy):
    """Warms up by a schedule class of its own; the rate is a metric of `fit`."""

    def rate(y_true, y_pred):
        return adam.learning_rate

    adam = None
    with strategy.scope():
        model = network()
        adam = keras.optimizers.Adam(WarmUp(64, 2), beta_2=0.98, epsilon=1e-9)
        model.compile(adam, "mse", metrics=[rate])
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, epochs=2, verbose=0)


class OneCycle(keras.callbacks.Callback):
    """Sets the rate before each batch, and looks at the loss after it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.05 * (batch + 1)

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((float(self.model.optimizer.learning_rate), logs["loss"]))


@agrees()
def rate_by_callback(strategy):
    """Changes the rate in mid-epoch."""
    callback = OneCycle()
    sgd = {"learning_rate": 0.1, "nesterov": True, "momentum": 0.9}
    return trained(strategy, lambda: keras.optimizers.SGD(**sgd), callback), callback.seen


@agrees()
def stops_early(strategy):
    """Stops when the validation no longer improves, with a lower rate before, and goes back."""
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(factor=0.1, patience=0, min_delta=1.0, verbose=0),
        keras.callbacks.EarlyStopping(patience=1, min_delta=1.0, restore_best_weights=True),
    ]
    with strategy.scope():
        model = network()
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = model.fit(
        *(FEATURES, TARGETS, BATCH_SIZE),
        **{
            "epochs": 5,
            "verbose": 0,
            "callbacks": callbacks,
            "validation_data": (FEATURES, TARGETS),
        },
    )
    return model, history


class StochasticAveraging(keras.callbacks.Callback):
    """Averages the weights of the ends of epochs, and leaves the average."""

    def on_train_begin(self, logs=None):
        self.sums, self.count = None, 0

    def on_epoch_end(self, epoch, logs=None):
        weights, self.count = self.model.get_weights(), self.count + 1
        self.sums = (
            weights
            if self.sums is None
            else [a + b for a, b in zip(self.sums, weights, strict=True)]
        )

    def on_train_end(self, logs=None):
        self.model.set_weights([total / self.count for total in self.sums])


@agrees()
def stochastic_weight_averaging(strategy):
    """Averages weights outside of the step (SWA)."""
    return trained(strategy, lambda: keras.optimizers.SGD(0.1), StochasticAveraging())


class Lookahead(keras.optimizers.SGD):
    """Every second step goes back half of the way to slow weights."""

    def build(self, variables):
        super().build(variables)
        self.slow = []
        for variable in variables:
            slow = self.add_variable_from_reference(variable, "slow")
            slow.assign(variable)
            self.slow.append(slow)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        now = ops.equal((self.iterations + 1) % 2, 0)
        between = ops.where(now, slow + 0.5 * (variable - slow), slow)
        slow.assign(between)
        variable.assign(ops.where(now, between, variable))


@agrees()
def lookahead(strategy):
    """Has an optimizer of its own, whose slots begin as the weights."""
    with strategy.scope():
        model = network()
        optimizer = Lookahead(0.1)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, "mse")
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, epochs=2, verbose=0), optimizer


class Centralized(keras.optimizers.RMSprop):
    """Takes the mean out of each kernel's gradient; biases learn faster."""

    def update_step(self, gradient, variable, learning_rate):
        if len(variable.shape) > 1:
            gradient = gradient - ops.mean(gradient, axis=0, keepdims=True)
        rate = learning_rate * (5.0 if "bias" in variable.name else 1.0)
        super().update_step(gradient, variable, rate)


@agrees()
def centralized_gradients(strategy):
    """Changes gradients inside of the optimizer, after clipping; rates depend on the variable."""
    return trained(strategy, lambda: Centralized(1e-2, clipnorm=0.05))


@agrees(tolerance=HALF)
def mixed_precision(strategy):
    """Computes in half precision, with a loss scale, which the history shows."""
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, "relu"), layers.Dense(1, dtype="float32")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    monitor = tfdp.callbacks.LossScaleMonitor()
    history = model.fit(FEATURES, TARGETS, BATCH_SIZE, epochs=2, verbose=0, callbacks=[monitor])
    return model, history


class LoRA(layers.Layer):
    """A frozen layer with a small product beside it, which alone is trained."""

    def __init__(self, frozen, rank=1):
        super().__init__()
        self.frozen, self.rank = frozen, rank
        frozen.trainable = False

    def build(self, shape):
        self.a = self.add_weight(shape=(shape[-1], self.rank), initializer="he_uniform", name="a")
        self.b = self.add_weight(
            shape=(self.rank, self.frozen.units), initializer="zeros", name="b"
        )

    def call(self, x):
        return self.frozen(x) + 4.0 * ops.matmul(ops.matmul(x, self.a), self.b)


@agrees()
def low_rank_adaptation(strategy):
    """Trains low-rank parts beside frozen weights: a layer of its own, and Keras' `enable_lora`."""
    with strategy.scope():
        base = network()
        first, last = base.layers
        last.enable_lora(rank=1)
        model = keras.Sequential([keras.Input((4,)), LoRA(first), last])
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, epochs=2, verbose=0)


class Langevin(keras.optimizers.SGD):
    """Stochastic gradient Langevin dynamics (Welling and Teh, 2011, equation 4)."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        noise = tf.random.normal(variable.shape, stddev=tf.sqrt(2e-6 * learning_rate))
        self.assign_add(variable, noise)


@agrees()
def langevin_dynamics(strategy):
    """Draws the noise of an update from `tf.random`."""
    return trained(strategy, lambda: Langevin(0.1))[1]
