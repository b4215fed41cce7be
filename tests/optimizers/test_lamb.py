"""LAMB against its paper in NumPy, two other libraries, and Adam."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from optimizers import problems

from tfdp.optimizers import LAMB
from tfdp.optimizers.lamb import bias_correction

KERAS = 1e-6  # Keras rounds betas and decay to float32, also where weights have float64


def algorithm_2(
    problem,
    *,
    beta_1=0.9,
    beta_2=0.999,
    eps=1e-6,
    decay=0.0,
    corrected=True,
    plain=(),
    undecayed=(),
    phi=None,
    to=None,
):
    """arXiv:1904.00962, Algorithm 2, in float64; without m and v's correction on request.

    `plain` variables have a ratio of 1, `undecayed` ones no decay; `phi` bounds the norm of the
    weights, `to` the ratio.
    """
    x = [np.asarray(w, np.float64) for w in problem.weights]
    m = [np.zeros_like(w) for w in x]
    v = [np.zeros_like(w) for w in x]
    seen = []
    for t, (eta, gradients) in enumerate(zip(problem.rates, problem.gradients, strict=True), 1):
        for i, g in enumerate(np.asarray(g, np.float64) for g in gradients):
            m[i] = beta_1 * m[i] + (1 - beta_1) * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g**2
            m_hat = m[i] / (1 - beta_1**t) if corrected else m[i]
            v_hat = v[i] / (1 - beta_2**t) if corrected else v[i]
            u = m_hat / (np.sqrt(v_hat) + eps)
            if i not in undecayed:
                u = u + decay * x[i]
            ratio, below = 1.0, np.sqrt((u**2).sum())
            bounded = np.clip(np.sqrt((x[i] ** 2).sum()), *(phi or (0, np.inf)))
            if i not in plain:
                ratio = bounded / below if bounded > 0 and below > 0 else 1.0
                ratio = np.clip(ratio, *(to or (0, np.inf)))
            x[i] = x[i] - eta * ratio * u
        seen.append(list(x))
    return seen


def lamb_of_keras(problem, decay, eps):
    """What `keras.optimizers.Lamb` does with decay: shrink the weights first, then leave it out."""
    shrunk = [np.asarray(w, np.float64) for w in problem.weights]
    m = [np.zeros_like(w) for w in shrunk]
    v = [np.zeros_like(w) for w in shrunk]
    seen = []
    for t, (eta, gradients) in enumerate(zip(problem.rates, problem.gradients, strict=True), 1):
        for i, g in enumerate(gradients):
            shrunk[i] = shrunk[i] * (1 - eta * decay)
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            r = m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - 0.999**t)) + eps)
            shrunk[i] = shrunk[i] - eta * np.linalg.norm(shrunk[i]) / np.linalg.norm(r) * r
        seen.append(list(shrunk))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", problems.TOLERANCES)
@problems.few
@given(data=st.data())
def test_it_is_the_papers_algorithm(dtype, data):
    problem = data.draw(problems.problems(dtype))
    number = len(problem.weights)
    # Not less: a float32 average that forgets at once has the rounding of what it has forgotten.
    beta_1 = data.draw(st.floats(0.1, 0.99))
    beta_2 = data.draw(st.floats(0.5, 0.9999))
    eps = data.draw(st.sampled_from([1e-8, 1e-6, 1e-2]))
    decay = data.draw(problems.decays())
    corrected = data.draw(st.booleans())
    plain = data.draw(problems.patterns(number))
    undecayed = data.draw(problems.patterns(number))
    phi = data.draw(problems.bounds(10.0))
    to = data.draw(problems.bounds(2.0))
    optimizer = LAMB(
        problems.learning_rate(problem.rates),
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=eps,
        weight_decay=decay,
        bias_correction=corrected,
        exclude_from_weight_decay=problems.excluding(undecayed),
        exclude_from_layer_adaptation=problems.excluding(plain),
        weight_norm_bounds=phi,
        trust_ratio_bounds=to,
    )
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    expected = algorithm_2(
        problem,
        beta_1=beta_1,
        beta_2=beta_2,
        eps=eps,
        decay=decay or 0.0,
        corrected=corrected,
        plain=plain,
        undecayed=undecayed,
        phi=phi,
        to=to,
    )
    problems.assert_same_steps(actual, expected, problem.weights, problems.TOLERANCES[dtype])


# optax 0.2.8 with jax 0.10.2, on `problems.fixed()`:
#
#   jax.config.update("jax_enable_x64", True)
#   kernel, bias, scale = problems.fixed().weights
#   weights = {"kernel": kernel, "bias": bias, "scale": scale}
#   mask = {"kernel": True, "bias": False, "scale": True}
#   solver = optax.lamb(0.125, b1=0.9, b2=0.99, eps=1e-6, weight_decay=0.1, mask=mask)
#   state = solver.init(weights)
#   for step in problems.fixed().gradients:
#       gradients = dict(zip(weights, step))
#       updates, state = solver.update(gradients, state, weights)
#       weights = optax.apply_updates(weights, updates)
OPTAX = [
    [
        [-0.2596311325211209, -1.0643673930105022, 2.755225085797849],
        [2.0667997181152433, 0.5319886774044962, -1.6644393743453778],
    ],
    [-0.01754669156397106, -0.23526639290387494, 0.46180959732647575],
    0.73272705078125,
]


def test_it_takes_the_steps_of_optax_with_decay_in_the_ratio():
    problem = problems.fixed()
    optimizer = LAMB(
        0.125,
        beta_2=0.99,
        weight_decay=0.1,
        exclude_from_weight_decay=["variable_1"],
        exclude_from_layer_adaptation=[],
    )
    last = problems.steps(optimizer, problem.weights, problem.gradients)[-1]
    for actual, expected in zip(last, OPTAX, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def ours_and_keras(decay):
    problem = problems.fixed()
    shared = {"learning_rate": 0.125, "epsilon": 1e-3, "weight_decay": decay}
    ours = LAMB(exclude_from_weight_decay=[], exclude_from_layer_adaptation=[], **shared)
    keras_own = keras.optimizers.Lamb(**shared)
    return problem, *(
        problems.steps(optimizer, problem.weights, problem.gradients)
        for optimizer in (ours, keras_own)
    )


@pytest.mark.parametrize("decay", [None, 0.0])
def test_without_decay_it_takes_the_steps_of_keras(decay):
    problem, ours, keras_own = ours_and_keras(decay)
    problems.assert_same_steps(ours, keras_own, problem.weights, KERAS)


def test_with_decay_keras_shrinks_first_and_leaves_it_out_of_the_ratio():
    problem, ours, keras_own = ours_and_keras(0.5)
    papers = algorithm_2(problem, eps=1e-3, decay=0.5)
    problems.assert_same_steps(ours, papers, problem.weights, 1e-12)
    shrinking = lamb_of_keras(problem, 0.5, 1e-3)
    problems.assert_same_steps(keras_own, shrinking, problem.weights, KERAS)
    apart = max(np.abs(a - b).max() for a, b in zip(ours[-1], keras_own[-1], strict=True))
    assert apart > 0.1


def test_what_is_not_adapted_takes_the_steps_of_adam():
    problem = problems.fixed()
    # Adam adds ε to what is not corrected yet: both agree where it does not matter.
    options = {"epsilon": 1e-14, "beta_1": 0.8, "beta_2": 0.99}
    optimizer = LAMB(
        0.125, weight_decay=None, exclude_from_layer_adaptation=["variable"], **options
    )
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    adam = keras.optimizers.Adam(0.125, **options)
    expected = problems.steps(adam, problem.weights, problem.gradients)
    problems.assert_same_steps(actual, expected, problem.weights, KERAS)


def test_decay_without_the_ratio_is_that_of_adamw():
    problem = problems.fixed()
    options = {"epsilon": 1e-14, "beta_2": 0.99, "weight_decay": 0.25}
    optimizer = LAMB(
        0.125,
        exclude_from_weight_decay=[],
        exclude_from_layer_adaptation=["variable"],
        **options,
    )
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    adamw = keras.optimizers.AdamW(0.125, **options)
    expected = problems.steps(adamw, problem.weights, problem.gradients)
    problems.assert_same_steps(actual, expected, problem.weights, KERAS)


def test_without_memory_every_weight_moves_by_the_sign_of_its_gradient():
    problem = problems.fixed()
    optimizer = LAMB(
        0.125,
        beta_1=0.0,
        beta_2=0.0,
        epsilon=1e-20,
        weight_decay=None,
        exclude_from_layer_adaptation=["."],
    )
    expected = list(problem.weights)
    seen = problems.steps(optimizer, problem.weights, problem.gradients)
    for step, gradients in zip(seen, problem.gradients, strict=True):
        expected = [w - 0.125 * np.sign(g) for w, g in zip(expected, gradients, strict=True)]
        for a, b in zip(step, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_every_step_moves_a_layer_by_the_rate_times_its_norm():
    problem = problems.fixed()
    before = problem.weights
    optimizer = LAMB(0.125, exclude_from_weight_decay=[], exclude_from_layer_adaptation=[])
    for after in problems.steps(optimizer, problem.weights, problem.gradients):
        for a, b in zip(after, before, strict=True):
            np.testing.assert_allclose(np.linalg.norm(a - b), 0.125 * np.linalg.norm(b), rtol=1e-12)
        before = after


@problems.few
@given(
    decay=st.just(0.0) | st.floats(1e-3, 0.99999),
    step=st.integers(1, 2_000),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_bias_correction_is_exact_to_the_last_bits(decay, step, dtype):
    actual = bias_correction(decay, tf.constant(step, dtype))
    assert actual.dtype == dtype
    above, below = decay.as_integer_ratio()  # in whole numbers, where nothing cancels
    exact = (below**step - above**step) / below**step
    np.testing.assert_allclose(float(actual), exact, rtol=16 * np.finfo(dtype).eps)


def test_it_has_two_slots_for_each_variable():
    optimizer = LAMB()
    optimizer.build(problems.variables(problems.fixed().weights))
    names = [v.path for v in optimizer.variables]
    assert names[2:] == [
        f"lamb/variable_{i}_{slot}" for i in range(3) for slot in ("momentum", "velocity")
    ]
