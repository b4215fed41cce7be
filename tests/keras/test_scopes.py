"""What is made or done on the wrong side of the scope is an error that says what to do."""

import contextlib

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers

import tfdp
from tfdp.base import hooks

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


def test_such_a_loop_is_told_once_how_all_replicas_would_work(caplog):
    model = harness.build_in_scope(harness.dense_model, 2)
    step = tf.function(step_of_one_device)
    for _ in range(2):
        step(model, X, Y)
        step_of_one_device(model, X, Y)
    assert caplog.text.count("@strategy.partitioned") == 1


def test_a_weight_that_is_cut_has_no_gradient_in_such_a_loop():
    strategy = harness.strategy(2, shard="parameters")
    with strategy.scope():
        model = harness.dense_model()
        with pytest.raises(ValueError, match=r'under shard="parameters".*@strategy\.partitioned'):
            step_of_one_device(model, X, Y)


def test_an_optimizer_is_built_in_its_scope_from_outside():
    model = harness.build_in_scope(harness.dense_model, 2)
    model.optimizer.build(model.trainable_variables)
    assert all(len(harness.components(each)) == 2 for each in model.optimizer.variables)


def a_base():
    return keras.Sequential([keras.Input((5,)), layers.Dense(3)])


def headed(base):
    inputs = keras.Input((5,))
    return keras.Model(inputs, layers.Dense(1)(base(inputs)))


class HeadedByClass(keras.Model):
    def __init__(self, base):
        super().__init__()
        self.base, self.head = base, layers.Dense(1)

    def call(self, x):
        return self.head(self.base(x))


TRAINING = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "loop": lambda model: step_of_one_device(model, X, Y),
}


@pytest.mark.parametrize(
    ("head", "method"),
    tiers.first_of(
        (headed, "fit"), (headed, "train_on_batch"), (HeadedByClass, "fit"), (headed, "loop")
    ),
)
def test_a_model_made_outside_around_a_part_from_the_scope_is_refused(head, method):
    with harness.scope(2):
        base = a_base()
    model = head(base)
    model.compile("sgd", "mse")
    assert model.predict(X, verbose=0).shape == (14, 1)  # as on one device
    with pytest.raises(tfdp.errors.ScopeError, match=r"in one scope, but 'sgd'.*whole model"):
        TRAINING[method](model)


@pytest.mark.parametrize("part", tiers.first_of("base", "layer", "metric", "optimizer", "seeds"))
@pytest.mark.parametrize("method", tiers.first_of("fit", "evaluate", "train_on_batch"))
def test_a_part_made_outside_of_a_model_in_the_scope_is_refused(part, method):
    made = {
        "base": a_base,
        "layer": lambda: layers.Dense(3),
        "metric": keras.metrics.MeanAbsoluteError,
        "optimizer": lambda: keras.optimizers.SGD(0.1),
        "seeds": lambda: layers.Dropout(0.5),
    }[part]()
    if part == "layer":
        made.build((None, 5))
    with harness.scope(2):
        is_layer = isinstance(made, keras.Layer)
        model = headed(made if is_layer else a_base())
        optimizer = made if part == "optimizer" else keras.optimizers.SGD(0.1)
        model.compile(optimizer, "mse", metrics=[made] if part == "metric" else [])
    calls = {**TRAINING, "evaluate": lambda model: model.evaluate(X, Y, verbose=0)}
    with pytest.raises(tfdp.errors.ScopeError, match=r"must be made in (the|one) scope"):
        calls[method](model)


@pytest.mark.parametrize("is_first_outside", [True, False])
def test_a_clone_is_of_the_scope_that_it_is_made_in(is_first_outside):
    first, second = contextlib.nullcontext(), harness.scope(2)
    first, second = (first, second) if is_first_outside else (second, first)
    with first:
        model = headed(a_base())
    with second:
        clone = keras.models.clone_model(model)
        clone.compile("sgd", "mse")
    clone.fit(X, Y, verbose=0)
    copies = {len(harness.components(each)) for each in clone.variables}
    assert copies == {2 if is_first_outside else 1}


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
    for earlier in hooks.users():  # of other tests, if they live
        monkeypatch.setattr(earlier.adapter_state, "warned_about", set())
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
