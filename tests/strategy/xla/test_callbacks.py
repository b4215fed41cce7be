"""Callbacks of tfdp under XLAStrategy."""

import json

import keras
import numpy as np

import tfdp


def test_telemetry_names_the_devices_that_compute(on_devices, tmp_path):
    with on_devices(4).scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callback = tfdp.callbacks.Telemetry(tmp_path, tensorboard=False)
    model.fit(np.ones([8, 4]), np.ones([8, 1]), batch_size=4, verbose=0, callbacks=[callback])
    start, *steps = map(json.loads, (tmp_path / "rank0.jsonl").read_text().splitlines())
    assert start["devices"] == ["4 x cpu"]
    assert start["replicas"] == start["local_replicas"] == 4
    assert [line["step"] for line in steps if line["kind"] == "step"] == [1, 2]
