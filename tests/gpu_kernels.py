"""Writes `gpu_kernels.json`: which kernels TensorFlow's build for GPUs has for the traced steps.

That build registers its kernels on a machine without a GPU, too:

    pip install --no-deps --target DIR tensorflow==2.21.*
    PYTHONPATH=DIR:.:tests python tests/gpu_kernels.py
"""

import json
import pathlib
import re

import harness  # noqa: F401 - makes the logical devices
import pytest
import tensorflow as tf
from gpu_placing import TABLE, Placing
from gpu_steps import LENGTHS, MODELS, REPLICAS, as_on_gpus, traced, traced_checksum
from tensorflow.python.framework.kernels import get_registered_kernels_for_op


def kernel(node):
    """The names of the arguments that a GPU's kernel has in the host's memory; None: no kernel."""
    for kind in ("GPU", "DEFAULT"):
        fitting = [
            each
            for each in get_registered_kernels_for_op(node.op).kernel
            if each.device_type == kind and not each.label and _takes(each, node)
        ]
        if fitting:
            return sorted(max(fitting, key=lambda each: each.priority).host_memory_arg)
    return None


def _takes(each, node):
    return all(
        {node.attr[one.name].type, *node.attr[one.name].list.type} - {0}
        <= set(one.allowed_values.list.type)
        for one in each.constraint
    )


class _Asked(dict):
    """Kernels by signatures, each asked for when a node is placed."""

    def __init__(self, placing):
        self.placing = placing

    def __missing__(self, key):
        self[key] = kernel(self.placing.seen[key])
        return self[key]


def refused():
    """By the types of collectives the dtypes that they refuse on GPUs, as the library says it."""
    library = pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    text = rb"Collective all-reduce does not support datatype DT_(\w+) on DEVICE_GPU"
    names = sorted(each.decode().lower() for each in set(re.findall(text, library.read_bytes())))
    return {"CollectiveReduceV2": names}


def main():
    if not tf.test.is_built_with_cuda():
        raise SystemExit(f"This must be the build for GPUs, but {tf.__file__} is not.")
    placing = Placing(None)
    placing._kernels = _Asked(placing)
    with pytest.MonkeyPatch.context() as monkeypatch:
        as_on_gpus(monkeypatch)
        for name in MODELS:
            for length in LENGTHS.values():
                for replicas in (None, REPLICAS):
                    step, _alive = traced(name, length, replicas)
                    placing.of(step)
        placing.of(traced_checksum())
    found = {
        "tensorflow": tf.__version__,
        "refused": refused(),
        "kernels": dict(sorted(placing._kernels.items())),
    }
    TABLE.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{len(placing._kernels)} kernels of TensorFlow {tf.__version__} are in {TABLE}.")


if __name__ == "__main__":
    main()
