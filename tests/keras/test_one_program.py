"""Steps of Keras' trainer that all replicas run as one program train as one device does."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

import tfdp

X, Y = np.random.default_rng(0).normal(size=(2, 29, 6)).astype("float32")


def trained(strategy, **compiled):
    """What a model has learned and says, on batches of 8, 8, 8 and 5 examples."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(6),
            ]
        )
        optimizer = keras.optimizers.Adam(
            0.02, global_clipnorm=0.1, gradient_accumulation_steps=2, use_ema=True
        )
        model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    logs = model.fit(
        X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(X[:9], Y[:9])
    ).history
    on_batches = [model.train_on_batch(X[:2], Y[:2]), model.test_on_batch(X[:5], Y[:5])]
    predicted = [model.predict(X, batch_size=8, verbose=0), model.predict_on_batch(X[:1])]
    return [*model.get_weights(), *logs.values(), *on_batches, *predicted]


@pytest.mark.parametrize(
    "compiled", tiers.first_of({"steps_per_execution": 3}, {}, {"jit_compile": True}), ids=str
)
def test_fit_evaluate_and_predict_are_one_devices(compiled):
    # Keras' "auto" compiles on one device, and XLA draws other numbers.
    expected = trained(tf.distribute.get_strategy(), **{"jit_compile": False, **compiled})
    for found, one in zip(trained(harness.strategy(3), **compiled), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5)


def small(strategy, *kinds, optimizer="sgd", **compiled):
    with strategy.scope():
        before = [kind() for kind in kinds]
        model = keras.Sequential([keras.Input((6,)), *before, layers.Dense(1)])
        model.compile(optimizer, "mse", **compiled)
    return model


def test_the_strategy_explains_a_models_steps():
    strategy = harness.strategy(2)
    model = small(strategy)
    with pytest.raises(ValueError, match="has run none"):
        strategy.explain(model)
    with pytest.raises(ValueError, match="but received 'train'"):
        strategy.explain(model, "train")
    with pytest.raises(tfdp.errors.ScopeError, match="made outside it"):
        strategy.explain(small(tf.distribute.get_strategy()))
    model.fit(X, Y[:, :1], verbose=0)
    model.predict(X, verbose=0)
    found = strategy.explain(model)
    assert [each.kind for each in found.collectives] == ["sum"] * len(found.collectives)
    assert found.collectives[0].size_bytes == 4 * (7 + 2), "the weights, the loss, and its weight"
    assert "COLLECTIVES" in str(found) and "test_one_program.py" in str(found)
    assert strategy.explain(model, "predict").collectives == ()


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"compression": tfdp.compression.Cast("bfloat16")}, 2 * 7),  # half of an all-reduce's
        ({"synchronization": tfdp.synchronization.LocalSGD(2)}, None),  # at a round's end
    ],
    ids=["compression", "synchronization"],
)
def test_what_code_of_the_replicas_own_exchanges_is_explained(options, sent):
    model = small(harness.strategy(2, **options))
    model.fit(X, Y[:, :1], verbose=0)
    found = model.distribute_strategy.explain(model)
    own = [each for each in found.collectives if each.kind == "update"]
    assert own[-1].bytes_sent == sent
    assert "test_one_program.py" in own[-1].line
    assert "per-replica code on 2 tensors" in " ".join(str(found).split())


def test_the_error_of_an_operation_names_the_users_line():
    class Failing(layers.Layer):
        def call(self, x):
            return tf.debugging.check_numerics(x / 0.0, "not a number")

    model = small(harness.strategy(2), Failing)
    with pytest.raises(tf.errors.InvalidArgumentError, match="CheckNumerics at test_one"):
        model.fit(X, Y[:, :1], verbose=0)


def test_another_number_of_steps_per_execution_must_be_compiled():
    model = small(harness.strategy(2))
    model.fit(X, Y[:, :1], verbose=0)
    model.steps_per_execution = 2
    with pytest.raises(ValueError, match="must stay as it was in `compile`, 1, but is 2"):
        model.fit(X, Y[:, :1], verbose=0)


@pytest.mark.parametrize("shard", tiers.first_of("parameters", None, "optimizer"))
def test_eager_steps_leave_the_same_values_on_all_replicas(shard, caplog):
    def run(strategy):
        keras.utils.set_random_seed(1)
        kinds = lambda: layers.Dropout(0.5), layers.BatchNormalization
        model = small(strategy, *kinds, optimizer="adam", run_eagerly=True)
        model.fit(X, Y[:, :1], batch_size=8, verbose=0, shuffle=False)
        return model, [*model.get_weights(), model.evaluate(X, Y[:, :1], verbose=0)]

    model, found = run(tfdp.DataParallelStrategy(["CPU:0", "CPU:1", "CPU:2"], shard=shard))
    assert caplog.text.count("run the whole batch in each process") == 1
    for value, expected in zip(found, run(tf.distribute.get_strategy())[1], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    for weight in model.weights:
        if harness.is_parted(weight):
            continue
        first, *others = harness.components(weight)
        assert all(first.tobytes() == other.tobytes() for other in others)
