"""Draws: replicas draw the numbers that one device draws for the whole batch, bit for bit."""

import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import of_replicas
from tfdp.tools.check_gpu.findings import StageFinding

_ROWS, _COLUMNS = 1001, 70


def _stateless(draw: Callable[..., tf.Tensor], **options: object) -> Callable[[], Callable]:
    """Draws by a seed that changes, as a training's do.

    Of one that is constant TensorFlow draws once, on the host, where the graph of one device has
    constant sizes: the last bits of normal numbers are the host's there.
    """

    def make() -> Callable[[tf.Tensor], tf.Tensor]:
        seed = tf.Variable([3, 4], trainable=False)
        return lambda x: draw((tf.shape(x)[0], _COLUMNS), seed.assign_add([1, 1]), **options)

    return make


def _layer(kind: type[keras.layers.Layer]) -> Callable[[], Callable]:
    def make() -> Callable[[tf.Tensor], tf.Tensor]:
        layer = kind(0.3, seed=7)
        return lambda x: layer(x, training=True)

    return make


# What makes each drawing function, of a batch of ones.
_DRAWS: dict[str, Callable[[], Callable[[tf.Tensor], tf.Tensor]]] = {
    "stateless uniform": _stateless(tf.random.stateless_uniform),
    "stateless normal": _stateless(tf.random.stateless_normal),
    "stateless truncated normal": _stateless(tf.random.stateless_truncated_normal),
    "stateless integers": _stateless(
        tf.random.stateless_uniform, minval=-5, maxval=1000, dtype=tf.int32
    ),
    "Dropout": _layer(keras.layers.Dropout),
    "GaussianNoise": _layer(keras.layers.GaussianNoise),
}


def compared(device: str, replicas: int) -> StageFinding:
    """Returns which draws of replicas are those of the first of their devices."""
    names = of_replicas(replicas, device)
    strategy = tfdp.DataParallelStrategy(devices=names)
    x = np.ones([_ROWS, _COLUMNS], "float32")
    found: dict[str, str] = {}
    for what, make in _DRAWS.items():
        print(f"draws: {what}", file=sys.stderr, flush=True)
        with tf.device(names[0]):
            alone = tf.function(make(), autograph=False)
            expected = [alone(tf.constant(x)).numpy() for _ in range(2)]
        with strategy.scope():
            drawing = make()
        together = strategy.partitioned(drawing)
        drawn = [together(tf.constant(x)).numpy() for _ in range(2)]
        found[what] = _told(expected, drawn)
    unlike = [what for what, said in found.items() if said != "the same"]
    if unlike:
        said = f"other numbers: {', '.join(unlike)} ({unlike[0]}: {found[unlike[0]]})"
    else:
        said = f"{', '.join(found)}: those of one device, bit for bit, on {replicas} replicas"
    return StageFinding("differs" if unlike else "works", said, found)


def _told(expected: list[np.ndarray], drawn: list[np.ndarray]) -> str:
    if all(np.array_equal(a, b) for a, b in zip(expected, drawn, strict=True)):
        return "the same"
    if any(a.shape != b.shape for a, b in zip(expected, drawn, strict=True)):
        return f"of another shape, {list(drawn[0].shape)}"
    apart = max(np.abs(a - b.astype(a.dtype)).max() for a, b in zip(expected, drawn, strict=True))
    unequal = np.mean([np.mean(a != b) for a, b in zip(expected, drawn, strict=True)])
    return f"{unequal:.1%} differ, by up to {apart:.1e}"
