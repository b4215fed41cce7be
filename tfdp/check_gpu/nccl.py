"""NCCL with one rank: does TensorFlow start it, and which numbers does it take?

One rank needs one GPU. What goes wrong here is the installation's fault, not the network's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import tensorflow as tf

from tfdp.bench.devices import of_replicas
from tfdp.check_gpu.findings import Finding

# What tfdp gives to NCCL. TensorFlow 2.21 refuses bfloat16, which tfdp sends as float32: that error
# shows that NCCL was asked. It comes last, for it ends the collectives of a process.
_DTYPES = ("float32", "float16", "float64", "int32", "int64")
_REFUSED = "bfloat16"
_GROUP = {"group_size": 1, "group_key": 2**30, "communication_hint": "nccl", "timeout_seconds": 30}


def with_one_rank(device: str) -> Finding:
    """Returns which collectives of which types of numbers give a single rank its own tensor."""
    (name,) = of_replicas(1, device)
    found: dict[str, str] = {}
    with tf.device(name):
        for dtype in _DTYPES:
            found[f"sum of {dtype}"] = _tried(_sum, dtype)
        found["gather of float32"] = _tried(_gather, "float32")
        if device == "GPU":  # CPUs have no such kernel
            found["reduce-scatter of float32"] = _tried(_reduce_scatter, "float32")
        wrong = {what: said for what, said in found.items() if said != "right"}
        found[f"sum of {_REFUSED}"] = _tried(_sum, _REFUSED)
    if wrong:
        what, said = next(iter(wrong.items()))
        return Finding("failed", f"{what}: {said}", found)
    by = "NCCL" if device == "GPU" else "TensorFlow on CPUs, without NCCL,"
    said = f"{len(found) - 1} collectives by {by} are right"
    said += f"; bfloat16: {found[f'sum of {_REFUSED}']}"
    return Finding("works", said, found)


def _tried(collective: Callable[[tf.Tensor], tf.Tensor], dtype: str) -> str:
    """Returns "right", "WRONG" or the error."""
    print(f"nccl: {collective.__name__[1:]} of {dtype}", file=sys.stderr, flush=True)
    own = tf.cast(tf.constant([[1, 2, 3]]), dtype)
    try:
        result = tf.function(collective, autograph=False)(own)
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0]}"
    same = result.dtype == own.dtype and bool(tf.reduce_all(tf.reshape(result, own.shape) == own))
    return "right" if same else "WRONG"


def _sum(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceV2(
        input=own, instance_key=own.dtype.as_datatype_enum, merge_op="Add", final_op="Id",
        ordering_token=[], **_GROUP,
    )  # fmt: skip


def _gather(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveGatherV2(input=own, instance_key=1001, ordering_token=[], **_GROUP)


def _reduce_scatter(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceScatterV2(
        input=own, instance_key=1002, merge_op="Add", final_op="Id", ordering_token=[], **_GROUP
    )
