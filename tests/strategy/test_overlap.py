"""Buckets are on their way while the backward pass goes on: read from TensorFlow's profile."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdp import topology

WIDTH, LAYERS = 512, 8


def events(folder):
    """Name, begin and end of everything that was traced, in picoseconds."""
    space = xplane_pb2.XSpace()
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space.ParseFromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns * 1000 + event.offset_ps
                name = plane.event_metadata[event.metadata_id].name
                yield name, begin, begin + event.duration_ps


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize(
    ("rule", "op"),
    [
        (topology.Native(), "CollectiveReduceV2"),
        pytest.param(topology.Ring(), "CollectiveBcastSendV2", marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_the_last_layers_gradients_travel_during_the_backward_pass(rule, op, tmp_path):
    strategy = harness.strategy(2, bucket_bytes=WIDTH * WIDTH * 4, topology=rule)
    with strategy.scope():
        hidden = [layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((WIDTH,)), *hidden, layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    x = np.zeros((2048, WIDTH), "float32")
    model.fit(x, x[:, :1], batch_size=2048, verbose=0)
    tf.profiler.experimental.start(str(tmp_path))
    model.fit(x, x[:, :1], batch_size=2048, verbose=0)
    tf.profiler.experimental.stop()
    traced = list(events(tmp_path))
    backward = [event for event in traced if "gradient_tape" in event[0] and "MatMul" in event[0]]
    # Small ones are counts and the loss, which go out before.
    began, ended = min(begin for _, begin, _ in backward), max(end for _, _, end in backward)
    inside = [event for event in traced if op in event[0] and began < event[1] < ended]
    assert len(backward) >= 2 * (2 * LAYERS - 1)
    assert len(inside) >= LAYERS // 2
