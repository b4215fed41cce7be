"""NCCL with one rank: does TensorFlow start it, and which numbers does it take?

One rank needs one GPU. What goes wrong here is the installation's fault, not the network's.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from tfdp.tools.bench.bench_devices import of_replicas
from tfdp.tools.check_gpu.stages import StageFinding

# What tfdp gives to NCCL. It sends bfloat16 as float32 and int32 as int64, since TensorFlow refuses
# both on GPUs: that error shows that NCCL was asked. It comes last, for it ends the collectives of
# a process.
_SUMMED = ("float32", "float16", "float64", "int64")
_GATHERED = ("float32", "float16", "int32", "int64")
_SCATTERED = ("float32", "int64")
_REFUSED = "bfloat16"
_ENDED = "not asked: TensorFlow runs no collective after one that failed"

_Collective: TypeAlias = Callable[[tf.Tensor], tf.Tensor]

_GROUP = {"group_size": 1, "group_key": 2**30, "communication_hint": "nccl", "timeout_seconds": 30}


def with_one_rank(device: str) -> StageFinding:
    """Returns which collectives of which types of numbers give a single rank its own tensor."""
    (name,) = of_replicas(1, device)
    found: dict[str, str] = {}
    with tf.device(name):
        for kind, (collective, dtypes) in _asked(device).items():
            for dtype in dtypes:
                what = f"{kind} of {dtype}"
                failed = any(said not in ("right", "WRONG") for said in found.values())
                found[what] = _ENDED if failed else _tried(what, collective, dtype)
        wrong = {what: said for what, said in found.items() if said != "right"}
        if not wrong:
            found[f"sum of {_REFUSED}"] = _tried("the refused sum", _sum, _REFUSED)
    if wrong:
        what, said = next(iter(wrong.items()))
        return StageFinding("failed", f"{what}: {said}", found)
    by = "NCCL" if device == "GPU" else "TensorFlow on CPUs, without NCCL,"
    said = f"{len(found) - 1} collectives by {by} are right"
    said += f"; bfloat16: {found[f'sum of {_REFUSED}']}"
    return StageFinding("works", said, found)


def _asked(device: str) -> Mapping[str, tuple[_Collective, tuple[str, ...]]]:
    asked: dict[str, tuple[_Collective, tuple[str, ...]]]
    asked = {"sum": (_sum, _SUMMED), "gather": (_gather, _GATHERED)}
    if device == "GPU":  # CPUs have no such kernel
        asked["reduce-scatter"] = (_reduce_scatter, _SCATTERED)
    return asked


def _tried(what: str, collective: _Collective, dtype: str) -> str:
    """Returns "right", "WRONG" or the error."""
    print(f"nccl: {what}", file=sys.stderr, flush=True)
    own = tf.cast(tf.constant([[1, 2, 3]]), dtype)
    try:
        result = tf.function(collective, autograph=False)(own)
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {_inner(error.message)}"
    same = result.dtype == own.dtype and bool(tf.reduce_all(tf.reshape(result, own.shape) == own))
    return "right" if same else "WRONG"


def _inner(message: str) -> str:
    """Returns what an error says, without the operations and lines that TensorFlow tells with it.

    >>> _inner("Graph execution error:\\n\\nDetected at node N defined at (most recent call last):"
    ...        "\\n<stack traces unavailable>\\nNo kernel\\nThe error could be from a previous "
    ...        "operation.\\n\\t [[{{node N}}]] [Op:__inference_f_2]")
    'No kernel'
    """
    told = ("Graph execution error", "Detected at node", "<stack", "File ", "[[", "The error could")
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(told))


def _sum(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceV2(
        input=own, instance_key=own.dtype.as_datatype_enum, merge_op="Add", final_op="Id",
        ordering_token=[], **_GROUP,
    )  # fmt: skip


def _gather(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveGatherV2(
        input=own, instance_key=1000 + own.dtype.as_datatype_enum, ordering_token=[], **_GROUP
    )


def _reduce_scatter(own: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceScatterV2(
        input=own, instance_key=2000 + own.dtype.as_datatype_enum, merge_op="Add", final_op="Id",
        ordering_token=[], **_GROUP,
    )  # fmt: skip
