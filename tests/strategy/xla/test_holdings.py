"""The arrays that a program takes from call to call, of which small ones are joined."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

jax = pytest.importorskip("jax")

from tfdp.strategy.xla.holdings import Holding  # noqa: E402 - needs JAX's package
from tfdp.strategy.xla.mesh_sharding import Layouts  # noqa: E402
from tfdp.strategy.xla.packed_arguments import Packing  # noqa: E402

SIZE = 20  # a group of 16, and one of 4
LARGE, KEPT = SIZE, SIZE + 1  # the places of one that is alone, and of one that is not written


@pytest.fixture
def filled():
    """A holding whose places have their numbers, and the layout of its arrays."""
    layout = Layouts(jax.devices()[:1]).replicated
    likes = [np.zeros([2, 2], "f4")] * SIZE + [np.zeros([100, 100], "f4")]
    holding = Holding(KEPT + 1, Packing(likes), layout)
    for place in range(KEPT + 1):
        shape = [100, 100] if place == LARGE else [2, 2]
        holding.put(place, jax.device_put(np.full(shape, place, "f4"), layout))
    return holding, layout


def step(holding):
    """Adds one to all that is written, as a program does."""
    written, _ = holding.given()
    holding.returned([array + 1 for array in written])


def test_small_arrays_are_given_joined_and_others_as_they_are(filled):
    holding, _ = filled
    written, kept = holding.given()
    assert [array.shape for array in written] == [(64,), (16,), (100, 100)]
    assert_array_equal(written[1], np.repeat(np.arange(16.0, SIZE), 4))
    assert [array.shape for array in kept] == [(2, 2)] and kept[0] is holding.array(KEPT)


def test_each_array_is_found_after_steps_and_is_the_same_until_the_next(filled):
    holding, _ = filled
    for count in (1, 2):
        step(holding)
        for place in (3, 17, LARGE):
            found = holding.array(place)
            assert_array_equal(found, np.full(found.shape, place + count))
            assert holding.array(place) is found
    assert_array_equal(holding.array(KEPT), np.full([2, 2], KEPT))


def test_to_look_at_an_array_joins_nothing_anew_and_to_put_one_its_own_group_alone(filled):
    holding, layout = filled
    step(holding)
    before, _ = holding.given()
    holding.array(3), holding.array(17)
    looked_at, _ = holding.given()
    assert all(one is other for one, other in zip(before, looked_at, strict=True))
    holding.put(17, jax.device_put(np.full([2, 2], -5, "f4"), layout))
    put, _ = holding.given()
    assert [one is other for one, other in zip(before, put, strict=True)] == [True, False, True]
    step(holding)
    expected = {3: 3 + 2, 16: 16 + 2, 17: -5 + 1, 18: 18 + 2}
    for place, value in expected.items():
        assert_array_equal(holding.array(place), np.full([2, 2], value))


def test_an_array_that_was_taken_out_keeps_its_value_while_steps_go_on(filled):
    holding, _ = filled
    step(holding)
    taken = holding.array(3)
    step(holding)
    assert_array_equal(taken, np.full([2, 2], 4))


@pytest.mark.parametrize(("count", "arrays"), [(1, 3), (2, SIZE + 1)])
def test_a_program_of_one_cpu_device_takes_and_returns_few_arrays(
    count, arrays, on_devices, monkeypatch
):
    given, returned = [], []
    monkeypatch.setattr(Holding, "given", _noting(Holding.given, given))
    monkeypatch.setattr(Holding, "returned", _noting(Holding.returned, returned))
    strategy = on_devices(count)
    with strategy.scope():
        variables = [tf.Variable(tf.fill([3], float(index))) for index in range(SIZE)]
        variables.append(tf.Variable(tf.fill([100, 100], float(SIZE))))

    @strategy.partitioned
    def step(x):
        for variable in variables:
            variable.assign_add(x * tf.ones_like(variable))

    step(tf.constant(1.0))
    step(tf.constant(2.0))
    assert [len(written) for (written, _), _ in given] == [arrays] * 2
    assert [len(news) for _, (news,) in returned] == [arrays] * 2
    for index, variable in enumerate(variables):
        assert_array_equal(variable, np.full(variable.shape, index + 3.0))


def _noting(function, noted):
    def call(holding, *arguments):
        found = function(holding, *arguments)
        noted.append((found, arguments))
        return found

    return call


class Meddles(keras.callbacks.Callback):
    """Halves one weight between epochs, reads another each few batches, and changes the rate."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        kernel = self.model.weights[2]
        kernel.assign(kernel / 2)
        self.model.optimizer.learning_rate = 0.02 / (1 + epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(np.sum(self.model.weights[1].numpy())))


def trained(steps):
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(6, "tanh") for _ in range(4)]
    normal = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input([5]), *hidden, normal, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], steps_per_execution=steps)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[48, 5]).astype("f4"), rng.normal(size=[48, 1]).astype("f4")
    meddles = Meddles()
    data = {"validation_data": (x[:16], y[:16]), "batch_size": 8, "shuffle": False}
    history = model.fit(x, y, epochs=3, verbose=0, callbacks=[meddles], **data)
    assert int(model.optimizer.iterations.numpy()) == 18
    values = [*model.variables, *model.optimizer.variables]
    return [value.numpy() for value in values], history.history, meddles.seen


@pytest.mark.parametrize("steps", [1, 3])
def test_a_fit_in_which_others_read_and_write_is_one_device_s(steps, on_devices):
    expected = trained(steps)
    with on_devices(1).scope():
        found = trained(steps)
    for value, other in zip(found[0], expected[0], strict=True):
        assert_allclose(value, other, rtol=1e-4, atol=1e-5)
    for name, values in expected[1].items():
        assert_allclose(found[1][name], values, rtol=1e-4, err_msg=name)
    assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)
