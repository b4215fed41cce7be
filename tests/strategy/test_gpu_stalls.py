"""What the host waits for in a step on GPUs, and whether GPUs have kernels of all that it holds.

A copy to the host has it wait until the GPU has done all that it was given. One device makes some:
it reads the seed of each dropout, and asks for loops' conditions. A copy to a GPU keeps it from
computing: one device makes some of the batch and of seeds.
"""

import functools

import gpu_placing
import gpu_steps
import harness
import pytest
import tensorflow as tf
import tiers

TABLE = gpu_placing.read()
# For each replica: a feature of int32 is in its GPU's memory, and TensorFlow computes with int32 on
# the host. One device has the feature from the host.
MORE_COPIES = {"embedding": 1, "transformer": 1}

# For each replica: what is made of lengths, which one device has as constants where all batches are
# of one size; and indices of int32, which the loop over time and the table have on the host.
MORE_UPLOADS = {"cnn": 3, "embedding": 1, "lstm": 4, "transformer": 5}

# For each replica: sums, what joins and divides their buckets, and zeros in the place of stand-ins.
MORE_LAUNCHES = 7
# What moments take to be one sum: a mean, a norm, and what joins and splits them. And what
# is made of lengths, which one device has as constants where all batches are of one size.
MORE_OF_LAYERS = {"cnn": 33}

# Without moments of all replicas' examples, and without rows of tables, which MirroredStrategy
# gathers.
BESIDE_MIRRORED = ("mlp", "lstm")

pytestmark = [
    harness.in_one_process,
    pytest.mark.skipif(
        tf.__version__ != TABLE["tensorflow"], reason="other versions have other kernels"
    ),
]


@functools.cache
def placed(name, length, replicas):
    with pytest.MonkeyPatch.context() as monkeypatch:
        gpu_steps.as_on_gpus(monkeypatch)
        step, _alive = gpu_steps.traced(name, gpu_steps.LENGTHS[length], replicas)
        return gpu_placing.Placing(TABLE["kernels"]).of(step)


@pytest.mark.parametrize("length", tiers.first_of("uneven", "even"))
@pytest.mark.parametrize("name", gpu_steps.MODELS)
def test_replicas_wait_for_gpus_no_more_than_one_device_does(name, length):
    one = placed(name, length, None)
    several = placed(name, length, gpu_steps.REPLICAS)
    most = gpu_steps.REPLICAS * (len(one.copies) + MORE_COPIES.get(name, 0))
    assert len(several.copies) <= most, several.copies
    most = gpu_steps.REPLICAS * (len(one.uploads) + MORE_UPLOADS.get(name, 0))
    assert len(several.uploads) <= most, several.uploads
    more = MORE_LAUNCHES + MORE_OF_LAYERS.get(name, 0)
    most = gpu_steps.REPLICAS * (len(one.launches) + more)
    assert len(several.launches) <= most, several.launches


@pytest.mark.parametrize("name", tiers.first_of(*BESIDE_MIRRORED))
def test_replicas_launch_no_more_than_those_of_mirrored_strategy(name):
    length, replicas = gpu_steps.LENGTHS["even"], gpu_steps.REPLICAS
    make = tf.distribute.MirroredStrategy
    step, _alive = gpu_steps.traced(name, length, replicas, make=make)
    stock = gpu_placing.Placing(TABLE["kernels"]).of(step)
    own = placed(name, "even", replicas)
    assert 0 < len(own.launches) <= len(stock.launches)
    assert len(own.copies) <= len(stock.copies)


@pytest.mark.parametrize("name", gpu_steps.MODELS)
def test_a_gpu_has_kernels_of_all_that_it_is_given(name):
    seen = placed(name, "uneven", gpu_steps.REPLICAS).seen
    assert seen and not [key for key in seen if TABLE["kernels"][key] is None]


def test_a_copy_to_the_host_is_seen():
    @tf.function(autograph=False)
    def step(x):
        with tf.device("CPU:1"):
            total = tf.reduce_prod(tf.shape(x))
        with tf.device("CPU:0"):
            return total + 1

    kernels = {
        "Shape T=float32 out_type=int32": ["output"],
        "Prod T=int32 Tidx=int32": ["reduction_indices"],
        "Const dtype=int32": ["output"],
        "Identity T=int32": [],
    }
    found = gpu_placing.Placing(kernels).of(step.get_concrete_function(tf.TensorSpec([None, 3])))
    assert list(found.copies) == ["Prod:0"]
