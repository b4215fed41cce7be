"""What LARS and LAMB share: half precision, sparse gradients, layers without a norm, graphs."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from optimizers import problems, rows

from tfdp.optimizers import LAMB, LARS

every_optimizer = pytest.mark.parametrize("make", rows.OPTIMIZERS.values(), ids=rows.OPTIMIZERS)


def slots_of(optimizer):
    """The variables with a shape: not the counter, and not the rate."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return [v for v in optimizer.variables if v.path.endswith(("momentum", "velocity"))]


# ---- half precision ----


@pytest.mark.slow
@every_optimizer
@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16",
        "bfloat16",
        *(pytest.param(p, marks=pytest.mark.exhaustive) for p in ("mixed_bfloat16", "float16")),
    ],
)
def test_slots_are_float32_and_training_works_under_every_policy(make, policy):
    keras.utils.set_random_seed(harness.SEED)
    keras.config.set_dtype_policy(policy)
    model = harness.dense_model(make(), metrics=(), run_eagerly=True)
    weight_type = "float32" if policy.startswith("mixed") else policy
    x, y = harness.regression_data()
    losses = harness.fit_arrays(model, 0.25 * x, 0.25 * y, batch_size=35, epochs=6)["loss"]
    assert {v.dtype for v in model.trainable_variables} == {weight_type}
    slots = slots_of(model.optimizer)
    assert len(slots) in (4, 8)
    assert {v.dtype for v in slots} == {"float32"}
    assert all(np.isfinite(np.asarray(w, "float32")).all() for w in model.get_weights())
    assert losses[-1] < 0.8 * losses[0], losses


@every_optimizer
@pytest.mark.parametrize(("dtype", "last_bit"), [("float16", 2**-10), ("bfloat16", 2**-7)])
def test_a_half_precision_variable_is_updated_in_float32(make, dtype, last_bit):
    # The square of no weight or gradient is a float16; their ratio is.
    weight = np.array([[300.0, -4000.0], [512.0, 30000.0]])
    gradient = np.array([[-(2.0**-14), 0.0], [2.0**-13, 2.0**-12]])
    for g in (gradient, 1e8 * gradient):
        in_half = tf.cast(tf.constant(g), dtype)
        exact = tf.cast(in_half, tf.float64).numpy()
        (expected,) = problems.steps(make(), [weight], [[exact]])
        (actual,) = problems.steps(make(), [weight], [[in_half]], dtype)
        np.testing.assert_allclose(np.asarray(actual[0], "float64"), expected[0], rtol=2 * last_bit)
        assert np.any(np.asarray(actual[0], "float64") != weight)


@every_optimizer
def test_small_steps_of_half_precision_add_up_in_the_slots(make):
    # In float16, 1 - 0.999 of a square of 1e-4 is nothing.
    optimizer, variable = make(), keras.Variable([1.0], dtype="float16", name="w")
    for _ in range(3):
        optimizer.apply([tf.constant([1e-4], tf.float16)], [variable])
    assert all(np.all(slot.numpy() != 0) for slot in slots_of(optimizer))


# ---- sparse gradients ----


@every_optimizer
@pytest.mark.parametrize("option", [{}, {"clipnorm": 0.5}, {"global_clipnorm": 0.5}], ids=str)
def test_a_sparse_gradient_takes_the_step_of_the_dense_one(make, option):
    table = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    values = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    rows_seen = [1, 4, 1, 0]  # one of them twice
    dense = np.zeros_like(table)
    np.add.at(dense, rows_seen, values)
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(rows_seen), tf.constant([6, 3]))
    if option:  # TensorFlow clips by the norm of the rows as they are
        sparse = tf.IndexedSlices(
            tf.constant(dense[[0, 1, 4]]), tf.constant([0, 1, 4]), tf.constant([6, 3])
        )
    ways = []
    for gradient in (sparse, tf.constant(dense)):
        optimizer, variable = make(**option), keras.Variable(table, name="embeddings")
        for _ in range(3):
            optimizer.apply([gradient], [variable])
        ways.append(variable.numpy())
    np.testing.assert_allclose(*ways, rtol=1e-6)
    # Decay, and the memory of LAMB, move rows that were not looked up.
    assert np.all(np.any(ways[0] != table, axis=1))


@pytest.mark.slow
@every_optimizer
def test_an_embedding_trains_as_a_dense_layer_of_its_one_hot_ids(make):
    ids = np.random.default_rng(0).integers(0, 5, (12, 3))
    targets = ids.sum(1, keepdims=True) / 5.0
    table = np.random.default_rng(1).normal(size=(5, 2)).astype("float32")
    outcomes = []
    for first, x in (
        (layers.Embedding(5, 2), ids),
        (layers.Dense(2, use_bias=False), np.eye(5, dtype="float32")[ids]),
    ):
        keras.utils.set_random_seed(harness.SEED)
        model = keras.Sequential(
            [keras.Input(x.shape[1:]), first, layers.Flatten(), layers.Dense(1)]
        )
        first.set_weights([table])
        model.layers[-1].kernel.assign(np.ones((6, 1)))
        model.compile(make(), "mse", run_eagerly=True)
        model.fit(x, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
        outcomes.append(model.get_weights())
    for a, b in zip(*outcomes, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


# ---- layers without a norm ----

WEIGHT, GRADIENT, NOTHING = np.array([3.0, -4.0]), np.array([0.5, 2.0]), np.zeros(2)


def moved(optimizer, weight, gradient):
    """By how much one step moves the weight."""
    (after,) = problems.steps(optimizer, [weight], [[gradient]])
    return weight - after[0]


@pytest.mark.parametrize("decay", [None, 0.125])
def test_lars_without_a_norm_takes_the_step_of_sgd(decay):
    def step(weight, gradient):
        return moved(LARS(0.5, trust_coefficient=0.25, weight_decay=decay), weight, gradient)

    # No weight: there is no fraction of it to move by, and the local rate is 1.
    np.testing.assert_allclose(step(NOTHING, GRADIENT), 0.5 * GRADIENT)
    # No gradient: λ · β · w is η · w, whatever the decay.
    np.testing.assert_allclose(step(WEIGHT, NOTHING), 0.5 * 0.25 * WEIGHT if decay else 0.0)
    np.testing.assert_array_equal(step(NOTHING, NOTHING), NOTHING)


@pytest.mark.parametrize("decay", [None, 0.125])
def test_lamb_without_a_norm_takes_the_step_of_adam(decay):
    def step(weight, gradient):
        return moved(LAMB(0.5, weight_decay=decay, epsilon=0.25), weight, gradient)

    np.testing.assert_allclose(step(NOTHING, GRADIENT), 0.5 * GRADIENT / (GRADIENT + 0.25))
    # No gradient: the update is the decay, which the ratio makes as long as the weights.
    np.testing.assert_allclose(step(WEIGHT, NOTHING), 0.5 * WEIGHT if decay else 0.0)
    np.testing.assert_array_equal(step(NOTHING, NOTHING), NOTHING)


@every_optimizer
def test_a_layer_that_starts_at_zero_leaves_it_and_is_adapted_from_then_on(make):
    seen = problems.steps(make(), [NOTHING], [[GRADIENT], [1e-3 * GRADIENT], [GRADIENT]])
    assert all(np.all(np.isfinite(step[0])) for step in seen)
    assert all(np.all(step[0] != 0) for step in seen)


# ---- gradients that are no numbers, or are missing ----


@every_optimizer
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_scale_skips_what_is_not_finite(make, bad):
    inner = make()
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    trained = problems.variables([WEIGHT, WEIGHT + 1])
    optimizer.apply([tf.constant(8.0 * GRADIENT)] * 2, trained)
    before = [v.numpy() for v in (*trained, *inner.variables)]
    broken = GRADIENT.copy()
    broken[1] = bad
    optimizer.apply([tf.constant(8.0 * GRADIENT), tf.constant(broken)], trained)
    for variable, value in zip((*trained, *inner.variables), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert float(optimizer.dynamic_scale) == 4.0
    # And its good step is that of the gradient without the scale.
    expected = problems.steps(make(), [WEIGHT, WEIGHT + 1], [[GRADIENT, GRADIENT]])[0]
    for actual, wanted in zip(before, expected, strict=False):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@every_optimizer
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_variable_without_a_gradient_stays_as_it_is(make):
    kept, trained = problems.variables([WEIGHT, WEIGHT])
    make().apply([None, tf.constant(GRADIENT)], [kept, trained])
    np.testing.assert_array_equal(kept.numpy(), WEIGHT)
    assert np.all(trained.numpy() != WEIGHT)


# ---- graphs ----


@pytest.mark.slow
@every_optimizer
def test_a_step_compiled_by_xla_is_the_eager_one(make):
    outcomes = []
    for way in ({"run_eagerly": True}, {"jit_compile": True}):
        model = harness.build_in_scope(
            lambda way=way: harness.dense_model(make(global_clipnorm=1.0), **way)
        )
        harness.fit_arrays(model)
        outcomes.append(harness.Outcome(harness.weights(model), harness.slots(model), None))
    harness.assert_same_outcome(*outcomes)


@pytest.mark.slow
@harness.needs_multi_optimizer
@every_optimizer
def test_an_optimizer_is_one_of_several(make):
    # A pattern is looked for among the variables that this one trains.
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.0), {".*kernel": make(exclude_from_weight_decay=["kernel"])}
        )
    )
    model = harness.build_in_scope(lambda: harness.dense_model(several, run_eagerly=True))
    before = harness.weights(model)
    harness.fit_arrays(model)
    changed = [np.any(a != b) for a, b in zip(before, harness.weights(model), strict=True)]
    assert changed == [True, False, True, False]


def test_two_builds_are_one():
    for optimizer in (LARS(), LAMB()):
        trained = problems.variables([WEIGHT])
        optimizer.build(trained)
        slots = optimizer.variables
        optimizer.build(trained)
        assert optimizer.variables == slots
