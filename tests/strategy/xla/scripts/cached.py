"""Trains a step, and prints what JAX's compilation cache had of its program, and the weights."""

import json

import jax

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfdp  # noqa: E402

strategy = tfdp.XLAStrategy(jax.devices()[:2])
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(np.ones([8, 4]), np.ones([8, 1]), batch_size=8, verbose=0)
found = {name: events.count(f"/jax/compilation_cache/cache_{name}") for name in ("hits", "misses")}
seconds = strategy.explain(model).seconds
weights = np.concatenate([each.ravel() for each in model.get_weights()])
print(json.dumps(found | {"seconds": seconds, "weights": weights.tolist()}))
