"""The networks: their shapes, sizes and what they normalize by."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from benchmarks.convergence.models import build_model
from benchmarks.convergence.splits import CONTEXT
from benchmarks.convergence.tasks import TASKS

TEXT = [name for name, task in TASKS.items() if task.is_text]
SHAPES = {"mlp": (784,), "cnn": (28, 28, 1)} | dict.fromkeys(TEXT, (CONTEXT,))
CLASSES = {"mlp": 10, "cnn": 10} | dict.fromkeys(TEXT, 84)
SIZES = {"mlp": 532_000, "cnn": 34_000} | dict.fromkeys(TEXT, 19_250)


@pytest.fixture(scope="module", params=TASKS)
def network(request):
    return request.param, build_model(request.param, SHAPES[request.param], CLASSES[request.param])


def test_each_label_has_logits(network):
    task, model = network
    outputs = model(np.zeros((3, *SHAPES[task])))
    places = (CONTEXT,) if TASKS[task].is_text else ()
    assert outputs.shape == (3, *places, CLASSES[task])


def test_only_the_convolutions_are_normalized_by_batch_and_only_the_transformer_by_layer(network):
    task, model = network
    kinds = {type(layer) for layer in model.layers}
    assert (layers.BatchNormalization in kinds) == (task == "cnn")
    assert (layers.LayerNormalization in kinds) == TASKS[task].is_text


def test_the_sizes_are_those_that_are_stated(network):
    task, model = network
    assert model.count_params() == pytest.approx(SIZES[task], rel=0.01)


def test_the_deep_mlp_has_six_layers_of_256():
    hidden = build_model("mlp", (784,), 10).layers[:-1]
    assert [(layer.units, layer.activation) for layer in hidden] == [
        (256, keras.activations.relu)
    ] * 6


@pytest.mark.parametrize("task", TEXT)
def test_the_transformer_does_not_see_what_follows(task):
    model = build_model(task, (CONTEXT,), 5)
    windows = np.random.default_rng(0).integers(5, size=(1, CONTEXT)).astype("int32")
    other = windows.copy()
    other[0, 20:] = (other[0, 20:] + 1) % 5
    before, after = (np.asarray(model(each))[0] for each in (windows, other))
    np.testing.assert_allclose(before[:20], after[:20], atol=1e-5)
    assert np.abs(before[20:] - after[20:]).max() > 1e-3


@pytest.mark.slow
def test_one_hot_rows_make_the_same_network_with_a_dense_gradient_of_its_table():
    looking_up, one_hot = (build_model(task, (CONTEXT,), 5) for task in TEXT)
    one_hot.set_weights(looking_up.get_weights())
    windows = np.random.default_rng(0).integers(5, size=(3, CONTEXT)).astype("int32")
    gradients = []
    for model in (looking_up, one_hot):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(windows)))
        gradients.append(tape.gradient(loss, model.trainable_variables[0].value))
    assert isinstance(gradients[0], tf.IndexedSlices)
    assert not isinstance(gradients[1], tf.IndexedSlices)
    np.testing.assert_allclose(*map(tf.convert_to_tensor, gradients), atol=1e-6)
