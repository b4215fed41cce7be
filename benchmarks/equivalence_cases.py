"""Small Keras programs whose outcome stock strategies change; none knows of a strategy."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from keras import layers

_RNG = np.random.default_rng(0)
EXAMPLES = 37
X = _RNG.normal(size=(EXAMPLES, 6)).astype("float32")
Y = _RNG.normal(size=(EXAMPLES, 2)).astype("float32")
LABELS = _RNG.integers(0, 2, (EXAMPLES, 1)).astype("float32")
TOKENS = _RNG.integers(0, 5, (32, 7))

CASES: dict[str, Callable[[], np.ndarray]] = {}


def _case(title: str) -> Callable[[Callable[[], np.ndarray]], Callable[[], np.ndarray]]:
    def register(run: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        CASES[title] = run
        return run

    return register


def _mlp(*first: keras.layers.Layer) -> keras.Sequential:
    return keras.Sequential(
        [keras.Input([6]), *first, layers.Dense(8, activation="tanh"), layers.Dense(2)]
    )


def _weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def _fit(
    optimizer: keras.optimizers.Optimizer,
    x: np.ndarray = X[:32],
    batch_size: int = 8,
    **compile_options: object,
) -> np.ndarray:
    model = _mlp()
    model.compile(optimizer, "mse", **compile_options)
    model.fit(x, Y[: len(x)], batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return _weights(model)


@_case("`global_clipnorm`, `clipnorm`, `clipvalue`")
def clipping() -> np.ndarray:
    """Clips the gradient, which must happen after the replicas' sum."""
    return np.concatenate(
        [
            _fit(keras.optimizers.SGD(0.1, **{name: bound}))
            for name, bound in (("global_clipnorm", 0.3), ("clipnorm", 0.1), ("clipvalue", 0.02))
        ]
    )


@_case("`gradient_accumulation_steps`")
def accumulation() -> np.ndarray:
    """Accumulates windows of three micro-batches."""
    return _fit(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3))


@_case("`use_ema` with `ema_overwrite_frequency`")
def averaging() -> np.ndarray:
    """Lets the average overwrite the weights every second step."""
    return _fit(keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2))


@_case("`LossScaleOptimizer`, one example overflows")
def overflow() -> np.ndarray:
    """Trains on an Inf in the last row of the second batch, which is not the first replica's."""
    x = X[:32].copy()
    x[15] = np.inf
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 8.0)
    return _fit(optimizer, x)


@_case("a short last batch")
def short_batch() -> np.ndarray:
    """Trains on 37 examples in batches of 16."""
    return _fit(keras.optimizers.SGD(0.1), X, batch_size=16)


@_case("a last batch smaller than the replicas")
def empty_share() -> np.ndarray:
    """Trains on 37 examples in batches of 12: the last holds one."""
    return _fit(keras.optimizers.SGD(0.1), X, batch_size=12)


@_case("`Dropout` and `GaussianNoise`")
def random_layers() -> np.ndarray:
    """Trains with noise and dropout of an example, which must not depend on its replica."""
    model = _mlp(layers.GaussianNoise(0.5), layers.Dense(8, activation="tanh"), layers.Dropout(0.5))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X[:32], Y[:32], batch_size=8, epochs=3, shuffle=False, verbose=0)
    return _weights(model)


@_case("a masked loss")
def masking() -> np.ndarray:
    """Trains on sequences of which the replicas have different numbers of valid steps."""
    model = keras.Sequential(
        [keras.Input([7], dtype="int32"), layers.Embedding(5, 4, mask_zero=True), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.5), "mse")
    targets = np.cos(np.arange(TOKENS.size)).reshape(*TOKENS.shape, 1)
    model.fit(TOKENS, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return _weights(model)


@_case("a finite generator: batches seen")
def generator() -> np.ndarray:
    """Counts the batches of a generator of four batches of eight, drawn once."""
    drawn: list[int] = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            drawn.append(batch)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, 32, 8):
            yield X[start : start + 8], Y[start : start + 8]

    model = _mlp()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(batches(), verbose=0, callbacks=[Count()])
    return np.array([len(drawn)], "float32")


@_case("`BatchNormalization`, mean 1e4: its moving variance")
def moments() -> np.ndarray:
    """Returns the moving variance, which is the global batch's."""
    model = keras.Sequential([keras.Input([6]), layers.BatchNormalization(momentum=0.0)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X[:32] + 1e4, np.zeros_like(X[:32]), batch_size=32, shuffle=False, verbose=0)
    return np.asarray(model.layers[0].moving_variance)


@_case("AUC in a batch's logs")
def batch_logs() -> np.ndarray:
    """Returns the AUC that a callback sees after each batch."""
    seen: list[float] = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            seen.append(float((logs or {})["auc"]))

    model = keras.Sequential([keras.Input([6]), layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    model.fit(X[:32], LABELS[:32], batch_size=8, shuffle=False, verbose=0, callbacks=[Keep()])
    return np.array(seen)


@_case("string inputs")
def strings() -> np.ndarray:
    """Trains with a vocabulary inside the model."""
    model = keras.Sequential(
        [
            keras.Input([1], dtype="string"),
            layers.StringLookup(vocabulary=["a", "b"]),
            layers.Embedding(3, 2),
            layers.Flatten(),
        ]
    )
    model.compile("sgd", "mse")
    words = tf.data.Dataset.from_tensor_slices(([["a"], ["b"]] * 16, Y[:32])).batch(8)
    model.fit(words, epochs=2, verbose=0)
    return _weights(model)


@_case("`jit_compile=True` on CPU")
def compiled() -> np.ndarray:
    """Trains with forward and backward pass through XLA."""
    return _fit(keras.optimizers.Adam(0.01), jit_compile=True)


@_case("`steps_per_execution` that does not divide the epoch")
def several_steps() -> np.ndarray:
    """Trains on four batches, three at a time."""
    return _fit(keras.optimizers.Adam(0.01), steps_per_execution=3)
