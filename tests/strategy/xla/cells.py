"""What Keras' users do, one thing in each: functions of a strategy, as for one device."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp

_RNG = np.random.default_rng(3)
X = (_RNG.normal(size=(60, 6)) * np.linspace(2, 0.5, 60)[:, None]).astype("float32")
Y = np.sin(X.sum(1, keepdims=True)).astype("float32")
LABELS = _RNG.integers(0, 3, 60)
BATCH_SIZE = 30  # which 4 and 8 devices do not share evenly

CELLS = {}


def cell(run):
    """Makes a function a cell, by its name."""
    CELLS[run.__name__] = run
    return run


def network(strategy, optimizer="sgd", loss="mse", outputs=1, between=(), **compile_options):
    """A small network in the strategy's scope."""
    with strategy.scope():
        given = [keras.Input([6]), layers.Dense(5, "tanh"), *[make() for make in between]]
        model = keras.Sequential([*given, layers.Dense(outputs)])
        model.compile(optimizer() if callable(optimizer) else optimizer, loss, **compile_options)
    return model


def fitted(strategy, *args, fit=None, **options):
    """The network and its history after two epochs of two batches."""
    model = network(strategy, *args, **options)
    usual = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
    return model, model.fit(X, Y, **usual | (fit or {}))


def of_optimizer(name, make):
    """Makes a cell of an optimizer."""

    def run(strategy):
        return fitted(strategy, make)

    run.__name__ = name
    cell(run)


def of_tables(name, make):
    """Makes a cell of an optimizer of a table, some of whose rows are in a batch several times."""

    def run(strategy):
        tokens = np.random.default_rng(7).integers(0, 40, (60, 3))
        with strategy.scope():
            rows = [keras.Input([3], dtype="int32"), layers.Embedding(50, 4), layers.Flatten()]
            model = keras.Sequential([*rows, layers.Dense(1)])
            model.compile(make(), "mse")
        return model, model.fit(tokens, Y, 25, 2, shuffle=False, verbose=0)

    run.__name__ = f"table_{name}"
    cell(run)


for kind in ("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor"):
    of_optimizer(kind, getattr(keras.optimizers, kind))
    of_tables(kind, getattr(keras.optimizers, kind))
for kind in ("Nadam", "Ftrl", "Lion", "Lamb", "Muon"):
    if hasattr(keras.optimizers, kind):
        of_optimizer(kind, getattr(keras.optimizers, kind))
        of_tables(kind, getattr(keras.optimizers, kind))
of_tables("RMSprop_with_momentum", lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True))
of_tables("LAMB", lambda: tfdp.optimizers.LAMB(0.01))
of_optimizer("LARS", lambda: tfdp.optimizers.LARS(0.1))
of_optimizer("LAMB", lambda: tfdp.optimizers.LAMB(0.01))


@cell
def batch_normalization(strategy):
    """Plain BatchNormalization has the whole batch's statistics."""
    return fitted(strategy, between=[layers.BatchNormalization])


@cell
def metrics(strategy):
    """Metrics of the batch and of the epoch, in training and in evaluation."""
    with strategy.scope():
        made = [keras.metrics.AUC(from_logits=True), keras.metrics.BinaryAccuracy(threshold=0.0)]
    model = network(strategy, "adam", keras.losses.BinaryCrossentropy(True), metrics=made)
    truth = (Y > 0).astype("float32")
    history = model.fit(X, truth, BATCH_SIZE, 2, verbose=0, validation_data=(X[:7], truth[:7]))
    return model, history, model.evaluate(X, truth, 25, verbose=0), model.predict(X, 25, verbose=0)


@cell
def steps_on_batches(strategy):
    """Trains, tests and predicts batch by batch."""
    model = network(strategy, "adam", metrics=["mae"])
    seen = [model.train_on_batch(X[:30], Y[:30], return_dict=True) for _ in range(2)]
    seen += [model.train_on_batch(X[:5], Y[:5], sample_weight=np.arange(5.0))]
    return model, seen, model.test_on_batch(X, Y), model.predict_on_batch(X[:9])


@cell
def weights_of_examples(strategy):
    """Weighs examples."""
    return fitted(strategy, fit={"sample_weight": np.linspace(0, 2, 60)}, weighted_metrics=["mae"])


@cell
def weights_of_classes(strategy):
    """Weighs classes."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = network(strategy, "adam", loss, 3, metrics=["accuracy"])
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    return model, model.fit(X, LABELS, BATCH_SIZE, 2, verbose=0, class_weight=weights)


@cell
def inputs_by_name(strategy):
    """Inputs and outputs in dicts and lists."""
    with strategy.scope():
        one, two = keras.Input([2], name="one"), keras.Input([4], name="two")
        x = layers.concatenate([layers.Dense(3, "tanh")(one), two])
        model = keras.Model({"one": one, "two": two}, [layers.Dense(1)(x), layers.Dense(3)(x)])
        sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", ["mse", sparse], loss_weights=[1.0, 0.3])
    given = {"one": X[:, :2], "two": X[:, 2:]}
    history = model.fit(given, [Y, LABELS], BATCH_SIZE, epochs=2, verbose=0)
    return model, history, model.predict(given, verbose=0)


@cell
def several_steps(strategy):
    """Three steps in an execution, of four and a short one."""
    return fitted(strategy, "adam", steps_per_execution=3, fit={"batch_size": 13})


@cell
def accumulated(strategy):
    """Three batches' gradients in an update."""
    return fitted(strategy, lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3))


@cell
def averages(strategy):
    """The moving average of weights, which takes their place at the end."""
    return fitted(strategy, lambda: keras.optimizers.Adam(0.01, use_ema=True))


@cell
def mixed_float16(strategy):
    """Half precision, whose optimizer scales the loss."""
    keras.config.set_dtype_policy("mixed_float16")
    return fitted(strategy, "adam")


@cell
def mixed_bfloat16(strategy):
    """The numbers of TPUs."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    return fitted(strategy, "adam")


@cell
def double_precision(strategy):
    """Numbers of 64 bits."""
    keras.config.set_dtype_policy("float64")
    return fitted(strategy, "adam")


@cell
def sequences(strategy):
    """A recurrent network on sequences with a mask."""
    tokens = _tokens()
    with strategy.scope():
        inputs = [keras.Input([9], dtype="int32"), layers.Embedding(10, 4, mask_zero=True)]
        model = keras.Sequential([*inputs, layers.LSTM(4), layers.Dense(1)])
        model.compile("adam", "mse")
    return model, model.fit(tokens, Y, BATCH_SIZE, 2, verbose=0)


def _tokens():
    tokens = np.random.default_rng(4).integers(1, 10, (60, 9))
    tokens[np.arange(9) >= np.random.default_rng(5).integers(1, 10, (60, 1))] = 0
    return tokens


@cell
def images(strategy):
    """Convolutions with normalization, pooling and dropout."""
    pictures = np.random.default_rng(6).random((60, 8, 8, 2)).astype("float32")
    with strategy.scope():
        first = [keras.Input([8, 8, 2]), layers.Conv2D(4, 3, padding="same", use_bias=False)]
        middle = [layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()]
        last = [layers.SpatialDropout2D(0.2), layers.GlobalAveragePooling2D(), layers.Dense(3)]
        model = keras.Sequential([*first, *middle, *last])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model, model.fit(pictures, LABELS, BATCH_SIZE, 2, verbose=0)


@cell
def best_weights_and_rates(strategy):
    """Callbacks that read and write weights and learning rates."""
    callbacks = [
        keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.1),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 2.0),
    ]
    fit = {"callbacks": callbacks, "epochs": 6}
    return fitted(strategy, lambda: keras.optimizers.SGD(0.2), fit=fit)


@cell
def weights_read_and_written_between_batches(strategy):
    """A callback halves a weight after each batch, and keeps what it saw."""
    seen = []

    class Halves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weight = self.model.layers[0].kernel
            seen.append(np.array(weight))
            weight.assign(weight * 0.5)
            self.model.optimizer.learning_rate = 0.1 / (batch + 1)

    model, history = fitted(strategy, fit={"callbacks": [Halves()]})
    return model, history, seen


@cell
def compiled_again(strategy):
    """A layer is frozen between two trainings, and the optimizer another."""
    model, first = fitted(strategy, "adam")
    model.layers[0].trainable = False
    with strategy.scope():
        model.compile("sgd", "mse")
    return model, first, model.fit(X, Y, batch_size=BATCH_SIZE, shuffle=False, verbose=0)


@cell
def saved_and_loaded(strategy):
    """A model is saved, loaded and trained on, with its optimizer."""
    with tempfile.TemporaryDirectory() as folder:
        model, first = fitted(strategy, "adam")
        path = pathlib.Path(folder, "model.keras")
        model.save(path)
        with strategy.scope():
            loaded = keras.models.load_model(path)
        second = loaded.fit(X, Y, batch_size=BATCH_SIZE, shuffle=False, verbose=0)
        weights = pathlib.Path(folder, "model.weights.h5")
        loaded.save_weights(weights)
        model.load_weights(weights)
        return model, loaded, first, second


@cell
def exported(strategy):
    """A trained model is exported, and what was exported predicts."""
    with tempfile.TemporaryDirectory() as folder:
        model, history = fitted(strategy, "adam")
        model.export(folder, verbose=False)
        loaded = tf.saved_model.load(folder)  # whose functions need its variables
        served = loaded.serve(X[:4])
    return model, history, served, model.predict(X[:4], verbose=0)


@cell
def callbacks_with_files(strategy):
    """Checkpoints of the best epoch, a backup that a second run restores, logs for TensorBoard."""
    with tempfile.TemporaryDirectory() as folder:
        best = pathlib.Path(folder, "best.keras")
        callbacks = [
            keras.callbacks.ModelCheckpoint(best, "loss", save_best_only=True),
            keras.callbacks.TensorBoard(folder + "/logs", histogram_freq=1),
            keras.callbacks.BackupAndRestore(folder + "/backup", delete_checkpoint=False),
        ]
        first, one = fitted(strategy, "adam", fit={"callbacks": callbacks})
        backup = keras.callbacks.BackupAndRestore(folder + "/backup", delete_checkpoint=False)
        second, two = fitted(strategy, "adam", fit={"callbacks": [backup], "epochs": 3})
        with strategy.scope():
            loaded = keras.models.load_model(best)
        return first, second, loaded, one, two


def batches(strategy, size, *arrays):
    """The arrays in batches, as the strategy distributes them."""
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(size)
    return strategy.experimental_distribute_dataset(data)


def parts_of_a_loop(strategy, *between):
    """A network that is built, its optimizer, and a metric."""
    with strategy.scope():
        made = [keras.Input([6]), layers.Dense(5, "tanh"), *[make() for make in between]]
        model = keras.Sequential([*made, layers.Dense(1)])
        return model, keras.optimizers.Adam(0.01, global_clipnorm=0.5), keras.metrics.Mean()


def descended(model, optimizer, loss_of):
    """A step down a loss."""
    with tf.GradientTape() as tape:
        loss = loss_of()
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@cell
def loop_of_steps(strategy):
    """An eager loop over an iterator, with a method for a step, which scales by the replicas."""
    model, optimizer, mean = parts_of_a_loop(strategy)

    class Trainer:
        def step(self, x, y):
            def loss():
                losses = tf.square(model(x, training=True) - y)
                return tf.reduce_mean(losses) / strategy.num_replicas_in_sync

            found = descended(model, optimizer, loss)
            mean.update_state(found)
            return found, tf.abs(model(x))

    trainer, seen = Trainer(), []
    for _ in range(2):
        iterator = iter(batches(strategy, 25, X, Y))
        for _ in range(3):
            loss, sizes = strategy.run(trainer.step, args=next(iterator))
            seen.append(strategy.reduce("SUM", loss, axis=None))
            seen.append(strategy.reduce("MEAN", sizes, axis=0))
            seen.append(strategy.experimental_local_results(sizes)[0])
        seen.append(mean.result())
    return model, seen


@cell
def steps_in_a_graph(strategy):
    """Several steps in a `tf.function`, which counts, measures and sets a rate between them."""
    model, optimizer, mean = parts_of_a_loop(strategy)

    def step(x, y):
        losses = []

        def loss():
            losses.append(tf.square(model(x, training=True) - y)[:, 0])
            return tf.nn.compute_average_loss(losses[0])

        return descended(model, optimizer, loss), losses[0]

    @tf.function
    def train(iterator, count):
        total = 0.0
        for index in tf.range(count):
            loss, losses = strategy.run(step, args=next(iterator))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
            mean.update_state(losses)
            if index == 1:
                optimizer.learning_rate.assign(optimizer.learning_rate * 0.5)
        return total, tf.strings.as_string(mean.result(), 4)

    return model, [train(iter(batches(strategy, 20, X, Y)), tf.constant(n)) for n in (3, 2)]


@cell
def epochs_in_a_graph(strategy):
    """An epoch in a `tf.function`, with a short last batch; layers are built in it."""
    with strategy.scope():
        model = keras.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(x, y):
        return descended(
            model, optimizer, lambda: tf.reduce_mean(tf.square(model(x, training=True) - y))
        )

    @tf.function
    def epoch(data):
        losses = 0.0
        for x, y in data:
            losses += strategy.run(lambda: step(x, y))  # noqa: B023 - tensors of the graph
        return losses

    return model, [epoch(batches(strategy, 25, X, Y)) for _ in range(2)]


@cell
def adversaries(strategy):
    """Two networks, each of which is trained on the other in one `tf.function`."""
    (one, its_optimizer, _), (two, other, _) = parts_of_a_loop(strategy), parts_of_a_loop(strategy)

    def first_step(x):
        return descended(one, its_optimizer, lambda: tf.reduce_mean((one(x) - two(x) + 1) ** 2))

    def second_step(x):
        return descended(two, other, lambda: tf.reduce_mean((two(x) + one(x) - 1) ** 2))

    @tf.function
    def train(x):
        losses = strategy.run(first_step, args=(x,)), strategy.run(second_step, args=(x,))
        return tf.cond(losses[0] > 1.0, lambda: strategy.run(second_step, (x,)), lambda: losses[1])

    return one, two, [train(x) for (x,) in batches(strategy, 30, X) for _ in range(3)]
