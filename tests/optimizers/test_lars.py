"""LARS against its paper in NumPy, another library, and momentum SGD."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimizers import problems

from tfdp.optimizers import LARS


def algorithm_1(
    problem,
    *,
    m=0.9,
    eta=0.001,
    beta=0.0,
    nesterov=False,
    plain=(),
    undecayed=(),
    phi=None,
    to=None,
):
    """arXiv:1708.03888, Algorithm 1 with the local rate of equation 6, in float64.

    `plain` variables have a local rate of 1, `undecayed` ones no decay; `phi` bounds the norm of
    the weights, `to` the local rate.
    """
    w = [np.asarray(x, np.float64) for x in problem.weights]
    v = [np.zeros_like(x) for x in w]
    seen = []
    for gamma, gradients in zip(problem.rates, problem.gradients, strict=True):
        for i, g in enumerate(np.asarray(g, np.float64) for g in gradients):
            b = 0.0 if i in undecayed else beta
            local = 1.0
            norm = np.sqrt((w[i] ** 2).sum())
            below = np.sqrt((g**2).sum()) + b * norm
            bounded = np.clip(norm, *(phi or (0, np.inf)))
            if i not in plain:
                local = eta * bounded / below if bounded > 0 and below > 0 else 1.0
                local = np.clip(local, *(to or (0, np.inf)))
            ahead = gamma * local * (g + b * w[i])
            v[i] = m * v[i] + ahead
            w[i] = w[i] - (m * v[i] + ahead if nesterov else v[i])
        seen.append(list(w))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", problems.TOLERANCES)
@problems.few
@given(data=st.data())
def test_it_is_the_papers_algorithm(dtype, data):
    problem = data.draw(problems.problems(dtype))
    number = len(problem.weights)
    m = data.draw(st.just(0.0) | st.floats(0.01, 0.99))
    nesterov = data.draw(st.booleans()) if m else False
    eta = data.draw(st.sampled_from([0.001, 0.1, 1.0]))
    beta = data.draw(problems.decays())
    plain = data.draw(problems.patterns(number))
    undecayed = data.draw(problems.patterns(number))
    phi = data.draw(problems.bounds(10.0))
    to = data.draw(problems.bounds(2.0))
    optimizer = LARS(
        problems.learning_rate(problem.rates),
        momentum=m,
        nesterov=nesterov,
        trust_coefficient=eta,
        weight_decay=beta,
        exclude_from_weight_decay=problems.excluding(undecayed),
        exclude_from_layer_adaptation=problems.excluding(plain),
        weight_norm_bounds=phi,
        trust_ratio_bounds=to,
    )
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    expected = algorithm_1(
        problem,
        m=m,
        eta=eta,
        beta=beta or 0.0,
        nesterov=nesterov,
        plain=plain,
        undecayed=undecayed,
        phi=phi,
        to=to,
    )
    problems.assert_same_steps(actual, expected, problem.weights, problems.TOLERANCES[dtype])


# optax 0.2.8 with jax 0.10.2, on `problems.fixed()`. Its λ is η‖w‖/‖g + βw‖, so only β = 0 agrees.
#
#   jax.config.update("jax_enable_x64", True)
#   kernel, bias, scale = problems.fixed().weights
#   weights = {"kernel": kernel, "bias": bias, "scale": scale}
#   mask = {"kernel": True, "bias": False, "scale": True}
#   solver = optax.lars(
#       0.5, trust_coefficient=0.125, momentum=0.9, nesterov=nesterov, trust_ratio_mask=mask
#   )
#   state = solver.init(weights)
#   for step in problems.fixed().gradients:
#       gradients = dict(zip(weights, step))
#       updates, state = solver.update(gradients, state, weights)
#       weights = optax.apply_updates(weights, updates)
OPTAX = {
    False: [
        [
            [0.19357031812863276, -0.7798427236347196, 2.544332650018988],
            [1.8680510955638678, 0.10338506120191804, -1.2764838745785076],
        ],
        [-1.8248454075081908, -0.5711343889329957, 1.8237958752532695],
        0.9651667785644532,
    ],
    True: [
        [
            [0.24716200077601935, -0.5860328197359315, 2.700172843324797],
            [1.8426428232452103, -0.07991142834768356, -1.4491466341822203],
        ],
        [-2.1535435576184856, -0.5355336054579493, 2.1909643961681247],
        0.9541795063018799,
    ],
}


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_decay_it_takes_the_steps_of_optax(nesterov):
    problem = problems.fixed()
    optimizer = LARS(
        0.5,
        momentum=0.9,
        nesterov=nesterov,
        trust_coefficient=0.125,
        weight_decay=None,
        exclude_from_layer_adaptation=["variable_1"],
    )
    last = problems.steps(optimizer, problem.weights, problem.gradients)[-1]
    for actual, expected in zip(last, OPTAX[nesterov], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_not_adapted_takes_the_steps_of_momentum_sgd(nesterov):
    problem = problems.fixed()
    options = {"momentum": 0.9, "nesterov": nesterov}
    optimizer = LARS(0.125, weight_decay=0.0, exclude_from_layer_adaptation=["variable"], **options)
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    sgd = keras.optimizers.SGD(0.125, **options)
    expected = problems.steps(sgd, problem.weights, problem.gradients)
    # Keras rounds the momentum to float32, also where weights have float64.
    problems.assert_same_steps(actual, expected, problem.weights, 1e-6)


def test_at_a_rate_of_1_a_layer_moves_by_the_trust_coefficient_whatever_its_gradient():
    weight = np.array([3.0, 4.0])
    for size in (1e-12, 1.0, 1e12):
        optimizer = LARS(1.0, momentum=0.0, trust_coefficient=0.25, weight_decay=None)
        ((after,),) = problems.steps(optimizer, [weight], [[size * np.array([2.0, -1.0])]])
        np.testing.assert_allclose(np.linalg.norm(weight - after), 0.25 * 5.0, rtol=1e-12)


def test_it_has_one_slot_for_each_variable():
    optimizer = LARS()
    optimizer.build(problems.variables(problems.fixed().weights))
    names = [v.path for v in optimizer.variables]
    assert names[2:] == [f"lars/variable_{i}_velocity" for i in range(3)]
