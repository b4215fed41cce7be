"""BetweenHosts in a cluster of four ranks, asserted on every rank.

Not collected by itself: `test_between_hosts.py` runs it in four processes, which it declares to be
on two hosts.
"""

import math

import harness
import keras
import numpy as np
import pytest

from tfdp.compression import BetweenHosts, ErrorFeedback, Int8, Sign, TopK

ROWS, COLUMNS, HOSTS, EXAMPLES = 9, 7, [0, 0, 1, 1], 8
PARTS = 2  # replicas of a host, of which each sends one


def trained(inner, batches):
    """The strategy and what a linear model's kernel has become; its rate is 1, its start 0."""
    first = harness.strategy(None)
    assert first.world_size == len(HOSTS)
    first.extended.processes.hosts[:] = HOSTS
    harness.start_over()
    strategy = harness.strategy(None, compression=ErrorFeedback(BetweenHosts(inner)))
    assert strategy.extended.hosts() == HOSTS
    with strategy.scope():
        dense = keras.layers.Dense(COLUMNS, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((ROWS,)), dense])
        model.compile(keras.optimizers.SGD(1.0), lambda y, outputs: y * outputs)
    kernels = []
    for x, y in batches:
        model.fit(x, y, batch_size=EXAMPLES, shuffle=False, verbose=0)
        kernels.append(model.get_weights()[0].astype("float64"))
    (slots,) = vars(model.optimizer)["tfdp_compression_slots"].values()
    (residual,) = slots["residual"].values
    board = strategy.extended.processes.board
    told = [residual.numpy().tolist(), model.get_weights()[0].tobytes().hex()]
    posts = [post.value for post in board.all_gather("residuals", told)]
    assert len({bits for _, bits in posts}) == 1
    return [0.0 * kernels[0], *kernels], [np.array(own) for own, _ in posts]


def data(count):
    rng = np.random.default_rng(0)
    sizes = [(EXAMPLES, ROWS), (EXAMPLES, COLUMNS)]
    return [[rng.normal(size=size).astype("float32") for size in sizes] for _ in range(count)]


def gradients_of_hosts(x, y):
    """The sum of each host's gradients, in float64."""
    own = [
        a.T.astype("float64") @ b / y.size
        for a, b in zip(np.split(x, 4), np.split(y, 4), strict=True)
    ]
    return [own[0] + own[1], own[2] + own[3]]


def test_hosts_send_the_largest_of_each_part_and_what_was_left_before():
    batches = data(3)
    kernels, residuals = trained(TopK(0.25, smallest=1), batches)
    size, padded = ROWS * COLUMNS, ROWS * COLUMNS + 1
    left = [np.zeros(padded), np.zeros(padded)]
    for number, (x, y) in enumerate(batches):
        applied = np.zeros(padded)
        for host, own in enumerate(gradients_of_hosts(x, y)):
            given = np.append(own.ravel(), 0.0) + left[host]
            sent = np.zeros(padded)
            for part in np.split(np.arange(padded), PARTS):
                chosen = np.argsort(-np.abs(given[part]))[: math.ceil(0.25 * part.size)]
                sent[part[chosen]] = given[part[chosen]]
            left[host] = given - sent
            applied += sent
        moved = (kernels[number] - kernels[number + 1]).ravel()
        np.testing.assert_allclose(moved, applied[:size], rtol=1e-4, atol=1e-6)
    for host in (0, 1):
        found = residuals[2 * host] + residuals[2 * host + 1]
        np.testing.assert_allclose(found.ravel(), left[host][:size], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "inner", [Sign(block=32, smallest=1), Int8(block=8, smallest=1)], ids=["Sign", "Int8"]
)
def test_blocks_that_are_filled_up_lose_nothing(inner):
    """A part has 32 numbers, the last of them one more than the gradient has."""
    batches = data(3)
    kernels, residuals = trained(inner, batches)
    given = sum(sum(gradients_of_hosts(x, y)) for x, y in batches)
    assert np.any(sum(residuals))
    np.testing.assert_allclose(sum(residuals) - kernels[-1], given, atol=1e-5)
