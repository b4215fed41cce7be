"""Random and fixed problems, as NumPy arrays, and what an optimizer of Keras makes of them."""

import dataclasses

import keras
import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

# A step of the optimizer costs milliseconds without a graph; to shrink a case costs minutes.
few = settings(max_examples=30, phases=[Phase.explicit, Phase.reuse, Phase.generate])

# Of the largest value that a variable takes on its way.
TOLERANCES = {"float32": 1e-5, "float64": 1e-12}


@dataclasses.dataclass
class Problem:
    """Weights, the gradients of each step, and each step's learning rate."""

    weights: list[np.ndarray]
    gradients: list[list[np.ndarray]]
    rates: list[float]


@st.composite
def problems(draw, dtype):
    """Up to three variables of any rank, some without weight or gradient, and up to four steps."""
    shapes = draw(
        st.lists(
            st.sampled_from([(), (1,), (5,), (3, 4), (1, 6), (3, 2, 2, 3)]), min_size=1, max_size=3
        )
    )
    steps = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = st.sampled_from([0.0, 1e-3, 1.0, 1.0, 1.0, 100.0])
    rate = st.just(0.0) | st.floats(2**-13, 0.5, width=32)

    def values(shape):
        return np.asarray(rng.normal(size=shape) * draw(scale), dtype)

    weights = [values(shape) for shape in shapes]
    gradients = [[values(shape) for shape in shapes] for _ in range(steps)]
    rates = draw(st.lists(rate, min_size=steps, max_size=steps) | rate.map(lambda r: [r] * steps))
    return Problem(weights, gradients, rates)


def patterns(number):
    """Exclusions: the variables' numbers, of which any may be left out."""
    return st.sets(st.integers(0, number - 1)).map(sorted)


def decays():
    """Often none, but none so small that only float32 cannot hold it."""
    return st.none() | st.just(0.0) | st.floats(1e-4, 0.5)


def bounds(high):
    """Of a norm or a ratio; often none."""
    end = st.just(0.0) | st.floats(1e-3, high)
    pair = st.tuples(end, end | st.just(np.inf))
    return st.none() | pair.map(lambda ends: tuple(sorted(ends)))


def fixed():
    """The problem whose solutions by another library are in these tests."""
    weights = [
        np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]]),
        np.array([0.1, -0.2, 0.3]),
        np.array(1.25),
    ]
    gradients = [
        [np.cos(np.arange(w.size).reshape(w.shape) + step) * 2.0**-step for w in weights]
        for step in range(4)
    ]
    return Problem(weights, gradients, [0.125] * 4)


def learning_rate(rates):
    """What an optimizer takes: a number, or a schedule if the rates differ."""
    if len(set(rates)) == 1:
        return rates[0]
    boundaries = list(range(len(rates) - 1))  # of PiecewiseConstantDecay: the last step of each
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)


def variables(weights, dtype=None):
    """Keras variables, `variable_0` and so on."""
    return [
        keras.Variable(w, dtype=dtype or str(w.dtype), name=f"variable_{i}")
        for i, w in enumerate(weights)
    ]


def excluding(ordinals):
    """The patterns that name some of `variables`."""
    return [f"^variable_{i}$" for i in ordinals]


def steps(optimizer, weights, gradients, dtype=None):
    """The weights after each step, which is run as it is, without a graph."""
    trained = variables(weights, dtype)
    seen = []
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], trained)
        seen.append([v.numpy() for v in trained])
    return seen


def assert_same_steps(actual, expected, start, tolerance):
    """Asserts that each variable's way agrees within `tolerance` of its largest value."""
    for ordinal, first in enumerate(start):
        way = np.stack([np.asarray(first, np.float64), *(step[ordinal] for step in expected)])
        np.testing.assert_allclose(
            np.stack([step[ordinal] for step in actual]),
            way[1:],
            rtol=0,
            atol=tolerance * np.abs(way).max(),
            err_msg=f"variable {ordinal}",
        )
