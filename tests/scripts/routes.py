"""Prints, as JSON, which modules a batch and a gradient cross: each with the first function called.

`test_routes` runs it in a process of its own, in which no other test has traced or cached anything.
"""

import gc
import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

PACKAGE = pathlib.Path(sys.argv[1])
STEP = ("keras/trainer/partitioned_steps", "made.<locals>.function")

# What has routes of its own: the step as on one device, and the way from it to a replica's program.
APART = {
    ("strategy/programs/program_trace", "ProgramTrace.__init__"),
    ("partition/partitioning", "partition"),
}
PARTS = {
    ("keras/optimizer/optimizer_hooks", "apply"): "update",
    ("strategy/programs/collective_functions", "CollectiveFunctions.sum"): "sum",
    ("partition/rules/variables", "assign"): "write",
}


def place(frame):
    path = pathlib.PurePath(frame.f_code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).with_suffix("").as_posix(), frame.f_code.co_qualname


class Crossed:
    """The modules whose functions the calling thread calls within the context, part by part."""

    def __init__(self):
        self.parts = {}
        self._stack = []

    def note(self, part, found):
        module, function = found
        self.parts.setdefault(part, {}).setdefault(module, function.split(".<locals>")[0])

    def within(self, function):
        return next((frame for frame, each in self._stack if each == function), None)

    def __call__(self, frame, event, _):
        if event == "return" and self._stack and self._stack[-1][0] is frame:
            self._stack.pop()
        found = place(frame) if event == "call" else None
        if found is None:
            return
        if found in self.watched:
            self._stack.append((frame, found))
        self.called(found)

    def __enter__(self):
        gc.collect()
        gc.disable()  # what it would end belongs to no route
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()


class Batch(Crossed):
    """The way of batches: as `fit` begins, and in each step after the first."""

    watched = {STEP, *APART}
    steps = 0

    def called(self, found):
        inside = [each for _, each in self._stack if each != found]
        if any(each in APART for each in inside):
            return
        if found == STEP:
            self.steps += 1
        if self.within(STEP):
            self.note("first step" if self.steps == 1 else "step", found)
        elif not self.steps:
            self.note("start", found)


class Gradient(Crossed):
    """The way of a gradient: into the update, through its sum, to the variable that is written."""

    watched = set(PARTS)

    def called(self, found):
        if self._stack:
            self.note(PARTS[self._stack[-1][1]], found)


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def main():
    (cpu,) = tf.config.list_physical_devices("CPU")
    both = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, both)
    import tfdp

    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    x, y = np.ones((24, 3), "float32"), np.ones((24, 2), "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    with tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).scope():  # which has summed nothing yet
        own = OwnStep()
        own.compile("sgd")
        own(x)
    with Batch() as first:
        model.fit(x, y, batch_size=8, verbose=0)
    with Batch() as later:
        model.fit(x, y, batch_size=8, verbose=0)
    with Gradient() as gradient:
        own.fit(x, y, batch_size=8, verbose=0)
    start, step = later.parts["start"], later.parts["first step"] | later.parts["step"]
    made = first.parts["start"] | first.parts["first step"]
    rest = {module: made[module] for module in made if module not in start | step}
    print(json.dumps({"start": start, "step": step, "made": rest, **gradient.parts}))


main()
