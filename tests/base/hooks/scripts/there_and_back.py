"""Trains with stock Keras, under a strategy, and with stock Keras again, in a process of its own.

Prints a line of JSON: what was found, for `tests/base/hooks/test_hook_registry.py`.
"""

import gc
import json
import sys
import weakref

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.base import hooks
from tfdp.base.hooks import versions
from tfdp.errors import HookError

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
X, Y = np.random.default_rng(1).normal(size=(2, 10, 3)).astype("float32")
found = {}


class Early(keras.optimizers.SGD):
    def apply(self, *args, **kwargs):
        return super().apply(*args, **kwargs)


def train():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1, clipnorm=0.1), "mse", metrics=["mae"])
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0).history
    return [*map(np.ndarray.tolist, model.get_weights()), history]


def functions():
    """All that is called in Keras and TensorFlow, by its module or class and name."""
    kept = {}
    owners = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(("keras.", "tensorflow.python."))
    ]
    classes = {
        value for owner in owners for value in vars(owner).values() if isinstance(value, type)
    }
    for owner in (*owners, *classes, sys, Early):
        for name, value in tuple(vars(owner).items()):
            if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
                kept[owner, name] = value
    return kept


def changed(before):
    return [
        versions.title(owner, name)
        for (owner, name), value in before.items()
        if vars(owner).get(name) is not value
    ]


before_training = train()
early = Early(0.1)
tfdp.DataParallelStrategy  # noqa: B018, imports all that the first strategy needs
before = functions()
found["owners"] = len(before)
found["changed by a pipeline"] = bool(tfdp.data.pipeline(X, 5, seed=1)) and changed(before)

strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    under_a_strategy = train()


class Late(keras.optimizers.Adam):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)


own = vars(Late)["apply_gradients"]
Late()
listed = {(hook.owner, hook.name) for hook in hooks.installed()}
found["lists what is changed"] = set(changed(before)) <= {
    versions.title(owner, name) for owner, name in listed
}
found["wraps what overrides"] = (Early, "apply") in listed
found["wraps what comes later"] = (Late, "apply_gradients") in listed
found["says why"] = all(hook.reason for hook in hooks.installed())
try:
    hooks.remove()
except HookError as error:
    found["refused"] = str(error)
found["stays where it is refused"] = listed == {(h.owner, h.name) for h in hooks.installed()}


def gone():
    class Gone(keras.optimizers.SGD):
        def apply(self, *args, **kwargs):
            return super().apply(*args, **kwargs)

    Gone()
    return weakref.ref(Gone)


reference = gone()
gc.collect()
found["keeps a class alive"] = reference() is not None

del strategy
outer = vars(keras.Model)["export"]
keras.Model.export = lambda self, *args, **kwargs: outer(self, *args, **kwargs)
try:
    hooks.remove()
except HookError as error:
    found["wrapped once more"] = str(error)
keras.Model.export = outer

hooks.remove()
found["left"] = changed(before) + [hook.name for hook in hooks.installed()]
found["late is as it was"] = vars(Late)["apply_gradients"] is own
found["trains as before"] = train() == before_training
with tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).scope():
    found["trains under a strategy as before"] = train() == under_a_strategy
print(json.dumps(found))
