"""The first stage: does TensorFlow see the devices, and do they compute?"""

import os

import numpy as np
import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import of_replicas
from tfdp.tools.check_gpu.findings import StageFinding
from tfdp.tools.doctor import rank_facts
from tfdp.tools.doctor.cluster_hints import hints
from tfdp.tools.doctor.examination import own_facts

_SIZE = 512
# A product of 512 terms in float32; TensorFloat-32 is off.
_BOUND = 1e-5


def seen(device: str) -> StageFinding:
    """Returns what the doctor says of this process' devices, and whether each multiplies right."""
    names = [f"GPU:{i}" for i in range(len(tf.config.list_physical_devices("GPU")))]
    if device == "CPU":
        names = of_replicas(2, "CPU")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    strategy = tfdp.DataParallelStrategy(devices=names or None)
    own = own_facts(0, strategy, rank_facts.chosen(os.environ))
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
