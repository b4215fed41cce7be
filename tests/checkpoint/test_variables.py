"""All variables of a model are kept, those that Keras does not list too."""

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.checkpoint import variables
from tfdp.replicas import OneProcess


class Noise(keras.Layer):
    """A layer that draws as programs for TensorFlow do, and counts by a variable of its own."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)
        self.counts = {"calls": [tf.Variable(2)]}


def build():
    with tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [keras.Input([5]), keras.layers.Dropout(0.5), keras.layers.Dense(2), Noise()]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam())
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
    return model, optimizer


def kept(model):
    alone = OneProcess(local_size=2)
    return dict(variables.wholes(alone, "a test", variables.copies(model, alone)))


def test_all_variables_have_one_name():
    model, optimizer = build()
    names = {id(variable): name for name, variable in variables.named(model).items()}
    owned = [
        (model.layers[0].seed_generator.state, "weight-0"),
        (optimizer.dynamic_scale, "optimizer-3"),
        (model.metrics[0].total, "metric-0"),
        (model.layers[2].counts["calls"][0], "other"),
        (model.layers[2].generator.state, "other"),
        (optimizer.inner_optimizer._u_product, "other"),
    ]
    for variable, name in owned:
        assert names[id(variable)].startswith(name)
    assert len(names) == len(variables.named(model)) == 3 + 10 + 2 + 3


def test_values_return():
    model, optimizer = build()
    saved = kept(model)
    assert saved["metric-0"].shape == (2,)  # a value of each replica
    others = [model.layers[2].counts["calls"][0], optimizer.inner_optimizer._u_product]
    before = [variable.numpy() for variable in others]
    for variable in others:
        variable.assign(9)
    draw = model.layers[2].generator.normal([3])
    for metrics in (False, True):
        variables.assign(model, saved, metrics, first_replica=0, replicas=2)
    assert [variable.numpy() for variable in others] == before
    np.testing.assert_array_equal(model.layers[2].generator.normal([3]), draw)


def test_the_first_difference_is_named():
    model, _ = build()
    saved = kept(model)
    assert variables.difference(model, saved) is None
    saved["weight-1"] = saved["weight-1"].T
    assert variables.difference(model, saved).endswith("is float32[5, 2], and there float32[2, 5]")
    del saved["optimizer-0"]
    assert "9 variables of the kind 'optimizer', and the model has 10" in variables.difference(
        model, saved
    )
