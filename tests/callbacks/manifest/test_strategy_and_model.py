"""What strategies and models say of themselves."""

import harness
import keras
import pytest
import tensorflow as tf

from tfdp import topology
from tfdp.callbacks.manifest.plain import text_of
from tfdp.callbacks.manifest.strategy_and_model import described_model, described_strategy

pytestmark = harness.in_one_process


@pytest.mark.slow
def test_what_auto_decided_is_there_with_its_measurements():
    found = described_strategy(harness.strategy(3, topology="auto"))
    assert found["options"]["topology"] == "auto"
    assert found["topology"]["name"] == "auto"
    assert found["topology"]["rules"][-1]["up_to_bytes"] is None
    assert found["topology"]["links"]["bytes_per_second_inside"] > 0
    assert found["bucket_bytes"] >= 2**20
    text_of(found)


def test_a_topology_of_one_s_own_is_shown_as_it_shows_itself():
    class Mine(topology.Ring):
        pass

    found = described_strategy(harness.strategy(2, topology=Mine()))
    assert found["topology"]["name"] == "Mine"
    assert found["options"]["topology"] == found["topology"]["repr"]


def test_a_strategy_of_tensorflow_tells_replicas_and_devices():
    found = described_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    expected = {"name": "MirroredStrategy", "replicas": 2, "devices": ["CPU:0", "CPU:1"]}
    assert found == expected


def test_the_number_of_replicas_can_be_described_without_a_trace_in_the_loss():
    strategy = harness.strategy(2)
    described_strategy(strategy)
    with strategy.scope():
        model = harness.dense_model()
    assert described_strategy(model.distribute_strategy)["replicas"] == 2


def test_a_model_that_is_not_built_has_no_number_of_parameters():
    found = described_model(keras.Sequential([keras.layers.Dense(3)]))
    assert found["parameters"] is None
    assert found["optimizer"] is None


def test_a_schedule_is_in_the_optimizer_s_configuration():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    found = described_model(harness.dense_model(keras.optimizers.Adam(schedule)))
    assert found["optimizer"]["learning_rate"]["class_name"] == "CosineDecay"
    text_of(found)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_dtype_policy_and_its_optimizer_are_told(policy):
    keras.config.set_dtype_policy(policy)
    found = described_model(harness.dense_model())
    assert found["dtype_policy"] == policy
    scaled = found["optimizer"]["class"] == "LossScaleOptimizer"
    assert scaled == (policy == "mixed_float16")
    text_of(found)
