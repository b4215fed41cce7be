"""What is asked of devices and of replicas on them: products, draws, sums, and the promise."""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import of_replicas, split
from tfdp.tools.check_gpu.check_programs import PROGRAMS, batches
from tfdp.tools.check_gpu.stages import StageFinding, trained_alike
from tfdp.tools.doctor.cluster_hints import hints
from tfdp.tools.doctor.measure import measure
from tfdp.tools.doctor.rank_facts import chosen, own_facts

_SIZE = 512
# A product of 512 terms in float32; TensorFloat-32 is off.
_BOUND = 1e-5
_NUMBERS = 4_000_000  # in the large all-reduce: 16 MB
_SUM_SECONDS = 60.0
_ROWS, _COLUMNS = 1001, 70


def seen(device: str) -> StageFinding:
    """Returns what the doctor says of this process' devices, and whether each multiplies right."""
    names = [f"GPU:{i}" for i in range(len(tf.config.list_physical_devices("GPU")))]
    if device == "CPU":
        names = of_replicas(2, "CPU")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    strategy = tfdp.DataParallelStrategy(devices=names or None)
    own = own_facts(0, strategy, chosen(os.environ))
    advice = [hint.text for hint in hints([own])]
    details = {
        "facts": own.to_json(),
        "build": dict(tf.sysconfig.get_build_info()),
        "hints": advice,
    }
    if device == "GPU" and not own.uses_gpu:
        return StageFinding("failed", advice[0] if advice else "TensorFlow sees no GPU", details)
    errors = {name: _error(name) for name in names}
    kinds = ", ".join(own.gpu_kinds) or "logical CPU devices"
    said = f"{len(names)} of {kinds}, NCCL {own.nccl or 'unknown'}, TensorFlow {tf.__version__}"
    wrong = [name for name, error in errors.items() if not error <= _BOUND]
    if wrong:
        said += f"; a product is wrong on {', '.join(wrong)}"
    if advice:
        said += f"; {len(advice)} to improve, which `tfdp doctor` tells"
    return StageFinding("differs" if wrong else "works", said, {**details, "errors": errors})


def _error(device: str) -> float:
    """Returns the largest error of a product, over the largest number of it."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, _SIZE, _SIZE)).astype("float32")
    with tf.device(device):
        found = tf.matmul(tf.constant(left), tf.constant(right)).numpy()
    expected = left.astype("float64") @ right.astype("float64")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def on_parts(device: str, parts: int) -> StageFinding:
    """Returns how far replicas on parts of the first device part from one such part."""
    strategy = tfdp.DataParallelStrategy(devices=split(parts, device))
    equal, said, details = _verified(strategy)
    return StageFinding("works" if equal else "differs", f"{parts} parts: {said}", details)


def on_gpus(device: str, gpus: int) -> StageFinding:
    """Returns whether replicas on a device each sum right, and how far they part from one."""
    strategy = tfdp.DataParallelStrategy(devices=of_replicas(gpus, device))
    summed = measure(strategy, _NUMBERS, _SUM_SECONDS)
    equal, said, details = _verified(strategy)
    milliseconds = 1e3 * (summed.large_seconds or 0.0)
    by = "NCCL" if strategy.extended.is_nccl else "TensorFlow's rings"
    right = "right" if summed.right else "WRONG"
    said = f"{gpus} replicas: 16 MB summed {right} by {by} in {milliseconds:.2f} ms; {said}"
    details = {"sums": dataclasses.asdict(summed), **details}
    return StageFinding("works" if equal and summed.right else "differs", said, details)


def _verified(strategy: tf.distribute.Strategy) -> tuple[bool, str, dict[str, Any]]:
    """Returns whether all programs train like one device, which do not, and how far they part."""
    found: dict[str, dict[str, Any]] = {}
    for name, build in PROGRAMS.items():
        print(f"promise: {name}", file=sys.stderr, flush=True)
        try:
            report = tfdp.verify(build, batches(name), strategy=strategy)
        except Exception as error:  # the next program may work
            found[name] = {"equal": False, "error": f"{type(error).__name__}: {error}"}
            continue
        largest = max(each.size for each in (*report.parted, *report.agreeing))
        found[name] = {"equal": bool(report), "difference": largest, "report": repr(report)}
    return *trained_alike(found, "one device"), {"programs": found}


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


def draws(device: str, replicas: int) -> StageFinding:
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
