"""Engines on GPUs ask TensorFlow for no sum that it refuses there; the GPUs are stand-ins."""

import gpu_placing
import numpy as np
import pytest
import tensorflow as tf
from nccl_rules import as_nccl

from tfdp.communication.engines import TensorFlowEngine, tensorflow_engine

__all__ = ["as_nccl"]

EVERYONE = (0, 1, 2, 3)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


@pytest.fixture(params=["rings", "NCCL"])
def on_gpus(request, monkeypatch):
    """Engines take the devices for parts of a GPU, or for GPUs."""
    monkeypatch.setattr(tensorflow_engine, "are_gpus", lambda devices: True)
    monkeypatch.setattr(tensorflow_engine, "communication_hint", lambda devices: "auto")
    if request.param == "NCCL":
        request.getfixturevalue("as_nccl")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("primitive", ["all_reduce", "reduce_scatter"])
def test_a_dtype_that_gpus_do_not_sum_travels_as_another(
    primitive, dtype, on_gpus, devices, on_replicas
):
    arrays = np.random.default_rng(0).integers(-4, 5, size=(4, 4, 3))
    engine = TensorFlowEngine(devices)

    def replica(rank):
        return getattr(engine, primitive)(tf.constant(arrays[rank], dtype), EVERYONE)

    step = on_replicas(4, replica)
    assert not gpu_placing.refused(step.get_concrete_function(), everywhere=True)
    for rank, result in enumerate(step()):
        expected = arrays.sum(0) if primitive == "all_reduce" else arrays.sum(0)[rank]
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy().astype("int64"), expected)


def test_gpus_round_a_sum_of_bfloat16_once(on_gpus, devices, on_replicas):
    engine = TensorFlowEngine(devices)
    own = tf.constant([1.0, 2.0**-8, 2.0**-8, 2.0**-8], tf.bfloat16)
    step = on_replicas(4, lambda rank: engine.all_reduce(own[rank : rank + 1], EVERYONE))
    # By halves each sum of the first would end in 1, which lies between bfloat16's numbers.
    expected = tf.cast(tf.constant([1.0 + 3 * 2.0**-8]), tf.bfloat16)
    for result in step():
        assert result.numpy() == expected.numpy() != tf.constant([1.0], tf.bfloat16).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_refused_is_seen(dtype):
    @tf.function(autograph=False)
    def step(own):
        with tf.device("CPU:1"):
            return tf.raw_ops.CollectiveReduceV2(
                input=own, group_size=1, group_key=1, instance_key=1, ordering_token=[],
                merge_op="Add", final_op="Id",
            )  # fmt: skip

    found = gpu_placing.refused(step.get_concrete_function(tf.TensorSpec([3], dtype)))
    assert found == ([f"CollectiveReduceV2 of {dtype}"] if dtype in ("bfloat16", "int32") else [])
