"""What is made or done on the wrong side of the scope is an error that says what to do."""

import weakref

import harness
import keras
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.keras_adapter.training import forgotten_scopes

pytestmark = pytest.mark.slow

X, Y = harness.regression_data(14)


class Lazy(keras.Model):
    """Builds its layers when it is first called."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def step_of_one_device(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_loop_in_the_scope_without_run_is_told_to_use_it(graph):
    with harness.scope(2):
        model = harness.dense_model()
        step = tf.function(step_of_one_device) if graph else step_of_one_device
        with pytest.raises(ValueError, match=r"taken in the scope.*strategy\.run\(step"):
            step(model, X, Y)


def test_a_loop_outside_the_scope_without_run_is_told_to_use_it():
    model = harness.build_in_scope(harness.dense_model, 2)
    with pytest.raises(tfdp.errors.ScopeError, match=r"built outside.*strategy\.run\(step"):
        step_of_one_device(model, X, Y)
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    with pytest.raises(tfdp.errors.ScopeError, match=r"makes one outside.*strategy\.run\(step"):
        step_of_one_device(model, X, Y)


def test_a_model_compiled_in_the_scope_must_be_built_there():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    with (
        harness.scope(2),
        pytest.raises(tfdp.errors.ScopeError, match=r"built in the scope.*would train on one"),
    ):
        model.compile("sgd", "mse")


def test_a_model_built_and_compiled_outside_trains_on_one_device_and_that_is_said_once(
    caplog, monkeypatch
):
    monkeypatch.setattr(forgotten_scopes, "_told", weakref.WeakSet())
    strategy = harness.strategy(2)
    for _ in range(2):
        model = harness.build_in_scope(harness.dense_model)
        harness.fit_arrays(model, X, Y)
        assert model.distribute_strategy is tf.distribute.get_strategy()
    said = [each.getMessage() for each in caplog.records if "outside the strategy's" in each.msg]
    assert len(said) == 1
    assert "one device trains it" in said[0] or "each rank trains it alone" in said[0]
    assert strategy.num_replicas_in_sync > 1


def lazy_models():
    return {
        "sequential": keras.Sequential([layers.Dense(1)]),
        "subclass": Lazy(),
    }


@pytest.mark.parametrize("kind", ["sequential", "subclass"])
def test_a_lazy_model_first_called_outside_is_told_where_to_call_it(kind):
    with harness.scope(2):
        model = lazy_models()[kind]
        model.compile("sgd", "mse")
    model(X[:1])
    with pytest.raises(tfdp.errors.ScopeError, match=r"/kernel'.*first call of a model.*no call"):
        model.fit(X, Y, verbose=0)


def loop_of(model, optimizer, strategy):
    @tf.function
    def step(batch):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(replica, args=batch)

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)


def test_a_custom_loop_of_a_lazy_model_first_called_outside_does_not_wait_for_ever():
    strategy = harness.strategy(2)
    with strategy.scope():
        model, optimizer = Lazy(), keras.optimizers.SGD(0.1)
    model(X[:1])
    with pytest.raises(tfdp.errors.ScopeError, match="first call of a model or layer"):
        loop_of(model, optimizer, strategy)
