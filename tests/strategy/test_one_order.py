"""Replicas that are GPUs, which add what goes to one place as it comes, keep equal copies.

What every replica adds up for itself must not have two entries for one place: it would have other
last bits on each. What is a replica's own summand, or its rows, may: all get the same sum of it.
"""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.partition import program_record, propagation
from tfdp.strategy.programs import reduction_order

# Which input of an operation the places are.
ADDING = {
    "ResourceScatterAdd": 1,
    "ResourceScatterSub": 1,
    "ResourceScatterMul": 1,
    "ResourceScatterDiv": 1,
    "ResourceScatterNdAdd": 1,
    "ResourceScatterNdSub": 1,
    "ScatterNd": 0,
    "SegmentMean": 1,
    "SegmentSum": 1,
    "SegmentSumV2": 1,
    "TensorScatterAdd": 1,
    "TensorScatterSub": 1,
    "UnsortedSegmentProd": 1,
    "UnsortedSegmentSum": 1,
}
ONCE = {"Unique:y:0", "Range:output:0"}


def embedding(optimizer):
    inputs = keras.Input((6,), dtype="int32")
    words = keras.layers.Embedding(20, 4)(inputs)
    places = keras.layers.Embedding(6, 4)(keras.ops.arange(6))
    x = keras.layers.GlobalAveragePooling1D()(words + places)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.5),
}


def trained(build, replicas=None):
    model = harness.build_in_scope(build, replicas)
    x = np.random.default_rng(0).integers(0, 20, size=(15, 6))
    model.fit(x, x[:, 0] % 3, batch_size=8, shuffle=False, verbose=0)
    return model


def is_of_floats(node):
    """Whether what is added has last bits that an order decides."""
    (kind,) = {name for name in ("T", "dtype") if name in node.attr}
    return tf.as_dtype(node.attr[kind].type).is_floating


@pytest.fixture
def alike(monkeypatch):
    """The names of the operations that are written for what every replica computes for itself."""
    names, place_of = set(), propagation._place

    def noting(step, inputs, task):
        place = place_of(step, inputs, task)
        if place != program_record.SHARE:
            names.update(task.written)
        return place

    monkeypatch.setattr(propagation, "_place", noting)
    return names


def adding_twice(program, alike):
    """What replicas add up alike though two entries may go to one place."""
    found = []
    for function in program.functions:
        nodes = {node.name: node for node in function.node_def}
        for node in function.node_def:
            is_alike = node.name in alike or "Resource" in node.op
            if node.op in ADDING and is_alike and is_of_floats(node):
                name, _, output = node.input[ADDING[node.op]].partition(":")
                if name not in nodes or f"{nodes[name].op}:{output}" not in ONCE:
                    found.append(f"{node.op} {node.name}")
    return found


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_table_is_updated_by_rows_that_may_be_the_same(name, replicas, alike, monkeypatch):
    def build():
        return embedding(OPTIMIZERS[name]())

    expected = trained(build).get_weights()
    monkeypatch.setattr(reduction_order, "is_any", lambda devices: True)
    model = trained(build, replicas)
    (step,) = model.train_function.steps._programs.values()
    assert alike
    assert not adding_twice(step._latest.program, alike)
    for weight, of_one in zip(model.weights, expected, strict=False):
        copies = [copy.numpy() for copy in weight.value.values]
        np.testing.assert_allclose(copies[0], of_one, atol=1e-5 * np.abs(of_one).max())
        assert all((copy == copies[0]).all() for copy in copies)
