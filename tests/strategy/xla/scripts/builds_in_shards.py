"""Builds, trains, saves and loads a model of sharded weights, and prints how much memory it takes.

Its eight devices are the host's, whose memory has their shards: the least that it takes is the
state once. Printed are MiB: of the state, of its largest variable, and the most that the process
has grown by after each part.

python builds_in_shards.py {auto,explicit} FOLDER
"""

import json
import os
import sys

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}

import keras
import numpy as np

import tfdp

OPTIONS = {
    "auto": {"mesh": {"batch": 1, "model": 8}, "layout_map": "auto"},
    "explicit": {
        "mesh": {"batch": 1, "model": 8},
        "layout_map": {"up_.*kernel": (None, "model"), "down_.*kernel": ("model", None)},
    },
}


def made(width, blocks):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([width])])
    for block in range(blocks):
        model.add(keras.layers.Dense(width, "relu", use_bias=False, name=f"up_{block}"))
        model.add(keras.layers.Dense(width, use_bias=False, name=f"down_{block}"))
    model.compile("adam", "mse")
    return model


def mib(of):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(of))
    return int(line.split()[1]) // 1024


def main(options, folder, width=2048, blocks=4):
    x = np.ones([16, width], np.float32)
    for size, count in ((256, 1), (width, blocks)):  # the first one starts all threads
        strategy = tfdp.XLAStrategy(**options)
        before, grown = mib("VmRSS"), {}
        with strategy.scope():
            model = made(size, count)
        grown["made"] = mib("VmHWM") - before
        model.fit(x[:, :size], x[:, :size], batch_size=16, epochs=2, verbose=0)
        grown["trained"] = mib("VmHWM") - before
        path = os.path.join(folder, "kept.weights.h5")
        model.save_weights(path)
        grown["saved"] = mib("VmHWM") - before
        model.load_weights(path)
        grown["loaded"] = mib("VmHWM") - before
        model.fit(x[:, :size], x[:, :size], batch_size=16, verbose=0)
        grown["trained again"] = mib("VmHWM") - before
    state = [each.value for each in [*model.weights, *model.optimizer.variables]]
    sizes = [np.prod(each.shape) * each.dtype.size / 2**20 for each in state]
    print(json.dumps({"state": sum(sizes), "largest": max(sizes), **grown}))


if __name__ == "__main__":
    main(OPTIONS[sys.argv[1]], sys.argv[2])
