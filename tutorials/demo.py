"""Trains one network on one device and on replicas, compares the weights and draws both curves.

    python -m tutorials.demo --replicas 4
    tfdp run -n 2 -- python -m tutorials.demo

Without a cluster the replicas are in this process; in one, on all of its devices. Every rank trains
on one device as well, and rank 0 tells.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfdp.base.command_line import add_options, check, option, options_of, require, set_environment

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from tutorials.datasets import ImageData

# Sums in another order differ in the last bit of float32 (6e-8), and training amplifies that. One
# device that was given each batch's examples in reverse ended 5e-7 from itself after the 184 steps
# of the digits and 4e-6 after the 1,876 of Fashion-MNIST. Two replicas ended 5e-7 and 2e-5 from one
# device (single runs on CPU). The bound leaves room above these, and is far below the difference of
# other training: two replicas of stock MirroredStrategy ended 6e-2 away on the digits.
RELATIVE_BOUND = 1e-4

_EPOCHS = {"digits": 8, "fashion_mnist": 2}


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """The choices of one run."""

    dataset: str = option("digits", "real images (%(default)s)", choices=tuple(_EPOCHS))
    replicas: int = option(
        2, "GPUs, or logical CPU devices (%(default)s; in a cluster its own)", at_least=2
    )
    epochs: int | None = option(None, "8 for digits, 2 for fashion_mnist", at_least=1, example="1")
    batch_size: int = option(64, "the global batch (%(default)s)", at_least=1)
    output: pathlib.Path = option(
        pathlib.Path("tfdp-demo.png"), "where to draw the curves (%(default)s)", writes=(".png",)
    )

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The result of one training.

    Args:
      history: The values per epoch of `loss`, `accuracy`, `val_loss` and `val_accuracy` (on the
        test split).
      step_seconds: The duration of every step after the first, which includes tracing.
      weights: The model's weights, float32.
    """

    history: dict[str, list[float]]
    step_seconds: list[float]
    weights: list[np.ndarray]

    @property
    def test_accuracy(self) -> float:
        """The accuracy on the test split after the last epoch, in [0, 1]."""
        return self.history["val_accuracy"][-1]


def build_model(image_shape: tuple[int, int, int]) -> keras.Model:
    """Builds and compiles a small convolutional network for images of 10 classes.

    All of it, Dropout included, is a function of the global batch and the seed, and is smooth, so
    that rounding errors stay rounding errors. GELU takes the place of ReLU, at whose kink a last
    bit decides whether a gradient passes (one device with reversed batches then ends 1e-2 from
    itself), and SGD with momentum that of Adam, which divides small gradients by their own size.
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("gelu"),
            layers.Conv2D(32, 3, padding="same", strides=2, activation="gelu"),
            layers.Conv2D(32, 3, padding="same", activation="gelu"),
            layers.Flatten(),
            layers.Dense(64, activation="gelu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # "auto" may compile on one device alone, where XLA rounds otherwise
    )
    return model


def train(
    data: ImageData,
    *,
    strategy: tf.distribute.Strategy | None,
    epochs: int,
    batch_size: int,
    seed: int,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> TrainingRun:
    """Trains the network; the same `seed` gives the same initial weights and order of examples.

    Args:
      data: The images.
      strategy: A strategy, or None for one device.
      epochs: The number of passes over the training split.
      batch_size: The global batch size.
      seed: The seed of the weights and the order.
      callbacks: More callbacks of the training.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    dataset = tf.data.Dataset.from_tensor_slices
    batches = dataset((data.train_images, data.train_labels))
    batches = batches.shuffle(len(data.train_images), seed=seed).batch(batch_size).prefetch(2)
    began: list[float] = []
    ended: list[float] = []
    # A step ends when its loss is known on the host.
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: began.append(time.perf_counter()),
        on_train_batch_end=lambda batch, logs: ended.append(time.perf_counter()),
    )
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = build_model(data.train_images.shape[1:])
    history = model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        validation_data=dataset((data.test_images, data.test_labels)).batch(batch_size),
        callbacks=[clock, *callbacks],
        verbose=0,
    )
    seconds = [end - begin for begin, end in zip(began, ended, strict=True)]
    return TrainingRun(history.history, seconds[1:], model.get_weights())


def steps_per_epoch(data: ImageData, batch_size: int) -> int:
    """Returns the number of global batches in an epoch; the last one may be short."""
    return -(-len(data.train_images) // batch_size)


def run(options: DemoOptions) -> int:
    """Trains twice, prints the comparison and draws the curves; returns the exit code."""
    import tfdp
    from tfdp import cluster
    from tutorials.datasets import load
    from tutorials.devices import prepare_devices

    place = cluster.detect()
    in_cluster = place.world_size > 1
    devices = None if in_cluster else prepare_devices(options.replicas)
    epochs = options.epochs or _EPOCHS[options.dataset]
    data = load(options.dataset)
    runs: dict[str, TrainingRun] = {}

    def fit(name: str, strategy: tf.distribute.Strategy | None) -> None:
        made = train(data, strategy=strategy, epochs=epochs, batch_size=options.batch_size, seed=7)
        runs[name] = made
        if place.rank == 0:
            print(
                f"{name}: {epochs * steps_per_epoch(data, options.batch_size)} steps of "
                f"{options.batch_size} examples, median "
                f"{1e3 * statistics.median(made.step_seconds):.1f} ms; training loss "
                f"{made.history['loss'][-1]:.6f}, test accuracy {made.test_accuracy:.4f}",
                flush=True,
            )

    # In a cluster the strategy comes before all else of TensorFlow.
    strategy = tfdp.DataParallelStrategy() if in_cluster else None
    fit("one device", None)
    strategy = strategy or tfdp.DataParallelStrategy(devices=devices)
    replicas = f"{strategy.num_replicas_in_sync} replicas"
    fit(f"{replicas} in {place.world_size} processes" if in_cluster else replicas, strategy)
    if place.rank == 0:
        draw(runs, f"{options.dataset}: {' and '.join(runs)}, same seed", options.output)
        print(f"Curves: {options.output}", flush=True)
    expected, found = (each.weights for each in runs.values())
    return verdict(expected, found, tells=place.rank == 0)


def verdict(expected: Sequence[np.ndarray], found: Sequence[np.ndarray], tells: bool = True) -> int:
    """Returns 0 where weights are within :data:`RELATIVE_BOUND` of the largest weight, else 1.

    Args:
      expected: The weights of one device.
      found: The weights of the replicas.
      tells: Whether to print the difference.
    """
    import numpy as np

    scale = max(float(np.abs(weight).max()) for weight in expected)
    pairs = zip(expected, found, strict=True)
    apart = np.max([np.abs(a - b).max() for a, b in pairs]) / scale  # NaN where a weight is
    if tells:
        print(
            f"Largest weight difference: {apart * scale:.2e}, {apart:.2e} of the largest weight "
            f"(bound {RELATIVE_BOUND:.0e})",
            flush=True,
        )
    if apart <= RELATIVE_BOUND:  # NaN is not
        return 0
    print(
        f"Replicas must end within {RELATIVE_BOUND:.0e} of one device's largest weight; received "
        f"{apart:.2e}. This is a bug in tfdp; please report it with the output above and the "
        "output of `pip freeze`.",
        file=sys.stderr,
    )
    return 1


def draw(runs: Mapping[str, TrainingRun], title: str, path: pathlib.Path) -> None:
    """Draws loss and accuracy per epoch, on the training and the test split, as a PNG.

    The first run is drawn broad, the second thin and dashed on top, so that both can be seen where
    they agree.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    styles: tuple[dict[str, Any], ...]
    styles = {"linewidth": 6, "alpha": 0.35}, {"linewidth": 1.5, "linestyle": "--"}
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, metric in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for (name, each), style in zip(runs.items(), styles, strict=True):
            epochs = range(1, len(each.history[metric]) + 1)
            style = style | {"marker": "o" if len(epochs) == 1 else None}
            axes.plot(
                epochs, each.history[metric], color="tab:blue", label=f"training, {name}", **style
            )
            axes.plot(
                epochs,
                each.history[f"val_{metric}"],
                color="tab:orange",
                label=f"test, {name}",
                **style,
            )
        axes.set(xlabel="epoch", ylabel=metric)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tutorials.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, DemoOptions)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line: 0; 1 where the weights differ; 2 where something is missing."""
    parser = build_parser()
    try:
        options = options_of(parser.parse_args(words), DemoOptions)
    except ValueError as error:
        parser.error(str(error))
    needed = ["sklearn"] if options.dataset == "digits" else []
    require(["tensorflow", "matplotlib", *needed], parser)
    set_environment()

    from tutorials.datasets import run_with_data

    return run_with_data(run, options, parser)


if __name__ == "__main__":
    sys.exit(main())
