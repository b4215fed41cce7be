"""Tables, recommendations, graphs: columns of every kind, ranking, uncertainty."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, FEATURES, LABELS, TARGETS, TOKENS, WORDS
from foreign.table import agrees
from keras import layers, ops

CITIES = np.array(["rome", "oslo", "lima"])[LABELS]
YEARS = TOKENS[:, 0] + 1990
COLUMNS = {"city": CITIES[:, None].astype(object), "year": YEARS[:, None], "size": FEATURES[:, :1]}


@agrees()
def columns_by_name(strategy):
    """Takes a dictionary of strings, integers and numbers; layers look them up and scale them."""
    city = layers.StringLookup(vocabulary=["oslo", "rome"], output_mode="one_hot")
    year = layers.IntegerLookup(vocabulary=sorted(set(YEARS[:9].tolist())), output_mode="int")
    with strategy.scope():
        size = layers.Normalization(axis=None)
        size.adapt(COLUMNS["size"])
        inputs = {
            "city": keras.Input((1,), dtype="string", name="city"),
            "year": keras.Input((1,), dtype="int64", name="year"),
            "size": keras.Input((1,), name="size"),
        }
        embedded = layers.Flatten()(layers.Embedding(20, 2)(year(inputs["year"])))
        x = layers.Concatenate()([city(inputs["city"]), embedded, size(inputs["size"])])
        model = keras.Model(inputs, layers.Dense(1)(layers.Dense(3, "relu")(x)))
        model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((COLUMNS, TARGETS)).batch(BATCH_SIZE)
    return model, model.fit(data, epochs=2, verbose=0)


@agrees()
def wide_and_deep(strategy):
    """Adds a linear model on crossed columns to a deep one, on several named outputs."""
    with strategy.scope():
        wide = keras.Input((2,), dtype="int32", name="wide")
        deep = keras.Input((4,), name="deep")
        crossed = layers.HashedCrossing(num_bins=7, output_mode="one_hot")(
            (wide[:, :1], wide[:, 1:])
        )
        x = layers.Dense(4, activation="relu")(deep)
        both = layers.Concatenate()([layers.Dense(1)(crossed), x])
        outputs = {
            "price": layers.Dense(1, name="price")(both),
            "kind": layers.Dense(CLASSES, activation="softmax", name="kind")(x),
        }
        model = keras.Model({"wide": wide, "deep": deep}, outputs)
        model.compile(
            keras.optimizers.Ftrl(0.1),
            loss={"price": "mse", "kind": "sparse_categorical_crossentropy"},
            loss_weights={"price": 2.0, "kind": 0.5},
            metrics={"kind": ["accuracy"]},
        )
    x = {"wide": TOKENS[:, :2], "deep": FEATURES}
    y = {"price": TARGETS, "kind": LABELS}
    return model, model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class Recommender(keras.Model):
    """Users and films meet in a dot product, with a bias each."""

    def __init__(self):
        super().__init__()
        regularizer = keras.regularizers.L2(1e-3)
        self.users, self.films = (
            layers.Embedding(WORDS, 3, embeddings_regularizer=regularizer) for _ in range(2)
        )
        self.user_bias, self.film_bias = layers.Embedding(WORDS, 1), layers.Embedding(WORDS, 1)

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        together = ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return ops.sigmoid(together + self.user_bias(user) + self.film_bias(film))


@agrees()
def recommender(strategy):
    """Is built by its first step; its gradients are rows of tables."""
    with strategy.scope():
        model = Recommender()
        model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    ratings = ops.convert_to_numpy(ops.sigmoid(TARGETS))
    return model, model.fit(TOKENS[:, :2], ratings, batch_size=BATCH_SIZE, epochs=2, verbose=0)


@agrees()
def imbalanced_classes(strategy):
    """Weighs rare classes more, and counts what is found and what is missed."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.BatchNormalization(),
                layers.Dense(4, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        metrics = [
            keras.metrics.FalseNegatives(),
            keras.metrics.Precision(),
            keras.metrics.AUC(num_thresholds=5, curve="PR"),
        ]
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics)
    history = model.fit(
        FEATURES, LABELS == 0, BATCH_SIZE, epochs=2, verbose=0, class_weight={0: 0.4, 1: 2.0}
    )
    return model, history


def pinball(y_true, y_pred):
    """The loss of three quantiles."""
    quantiles, error = ops.convert_to_tensor([0.1, 0.5, 0.9]), y_true - y_pred
    return ops.mean(ops.maximum(quantiles * error, (quantiles - 1.0) * error), axis=-1)


@agrees()
def quantiles(strategy):
    """Predicts quantiles, and asks the network with its dropout on how sure it is."""
    with strategy.scope():
        inputs = keras.Input((4,))
        x = layers.Dropout(0.2)(layers.Dense(4, activation="relu")(inputs), training=True)
        model = keras.Model(inputs, layers.Dense(3)(x))
        model.compile(keras.optimizers.Adamax(1e-2), pinball)
    return model, model.fit(FEATURES, TARGETS, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class BayesianDense(layers.Layer):
    """Weights that are drawn anew in each step; their divergence is a part of the loss."""

    def __init__(self, units):
        super().__init__()
        self.units, self.seed = units, keras.random.SeedGenerator(6)

    def build(self, shape):
        kernel = (shape[-1], self.units)
        self.mean = self.add_weight(shape=kernel, initializer="glorot_uniform", name="mean")
        self.rho = self.add_weight(shape=kernel, initializer="zeros", name="rho")

    def call(self, x):
        scale = 0.1 * ops.softplus(self.rho)
        kernel = self.mean + scale * keras.random.normal(ops.shape(self.mean), seed=self.seed)
        self.add_loss(1e-2 * ops.sum(self.mean**2 + scale**2 - 2 * ops.log(scale)))
        return ops.matmul(x, kernel)


@agrees()
def bayesian_network(strategy):
    """Draws its weights, the same ones on all replicas, not one for each example."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), BayesianDense(8), BayesianDense(1)])
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model, model.fit(FEATURES, TARGETS, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class MessagePassing(layers.Layer):
    """What a node is told by its neighbours; the nodes that pad a graph say nothing."""

    def __init__(self, width):
        super().__init__()
        self.message, self.update = layers.Dense(width, "relu"), layers.Dense(width, "relu")

    def call(self, inputs):
        nodes, edges, present = inputs
        told = ops.matmul(edges, self.message(nodes) * present)
        degree = ops.maximum(ops.sum(edges, axis=-1, keepdims=True), 1.0)
        return self.update(ops.concatenate([nodes, told / degree], axis=-1)) * present


@agrees()
def graphs(strategy):
    """Judges graphs that are padded to one size."""
    rng = np.random.default_rng(7)
    present = (np.arange(5) < rng.integers(2, 6, (len(LABELS), 1)))[..., None].astype("float32")
    edges = (rng.random((len(LABELS), 5, 5)) < 0.5) * present * present.transpose(0, 2, 1)
    nodes = rng.normal(size=(len(LABELS), 5, 3)) * present
    with strategy.scope():
        inputs = [keras.Input((5, 3)), keras.Input((5, 5)), keras.Input((5, 1))]
        x = MessagePassing(4)(inputs)
        x = ops.sum(x * inputs[2], axis=1) / ops.sum(inputs[2], axis=1)
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    data = [nodes, edges, present]
    return model, model.fit(data, TARGETS, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class HyperDense(layers.Layer):
    """A layer whose weights another network makes of each example."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, shapes):
        self.inside = shapes[0][-1]
        self.maker = layers.Dense(self.inside * self.units)

    def call(self, inputs):
        x, condition = inputs
        kernels = ops.reshape(self.maker(condition), (-1, self.inside, self.units))
        return ops.einsum("bi,bij->bj", x, kernels)


@agrees()
def hypernetwork(strategy):
    """Has kernels for each example."""
    with strategy.scope():
        inputs = keras.Input((4,))
        condition = layers.Dense(2, activation="tanh")(inputs)
        model = keras.Model(inputs, HyperDense(1)([inputs, condition]))
        model.compile(keras.optimizers.Adam(1e-2), keras.losses.LogCosh())
    return model, model.fit(FEATURES, TARGETS, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class Experts(layers.Layer):
    """A mixture of experts; a term in the loss shares the examples out evenly, as in Switch."""

    def __init__(self, count, width):
        super().__init__()
        self.experts = [layers.Dense(width, "relu") for _ in range(count)]
        self.gate = layers.Dense(count, "softmax")

    def call(self, x):
        gates = self.gate(x)
        given = ops.one_hot(ops.argmax(gates, axis=-1), len(self.experts))
        self.add_loss(0.1 * ops.sum(ops.mean(given, axis=0) * ops.mean(gates, axis=0)))
        return ops.einsum("be,ebd->bd", gates, ops.stack([expert(x) for expert in self.experts]))


@agrees()
def experts(strategy):
    """Adds a product of two means over the batch to the loss."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Experts(2, 3), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, model.fit(FEATURES, TARGETS, batch_size=BATCH_SIZE, verbose=0)
