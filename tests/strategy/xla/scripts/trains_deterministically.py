"""Trains after `tfdp.enable_determinism(SEED)`, and prints checksums of weights and losses."""

import os
import sys
import zlib

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}

import keras
import numpy as np

import tfdp

tfdp.enable_determinism(int(sys.argv[1]))
with tfdp.XLAStrategy().scope():
    layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input([6], dtype="int32"), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
x, y = np.random.randint(0, 20, [48, 6]), np.random.rand(48, 1)
losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
for arrays in (model.get_weights(), [np.array(losses)]):
    print(zlib.crc32(b"".join(array.tobytes() for array in arrays)))
