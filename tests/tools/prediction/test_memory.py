"""The bytes of a replica, and the ranks on which they fit."""

import pytest

from tfdp.tools.prediction import GradientTensor, Workload, memory_of, ranks_to_fit

P = 4e6
ADAM = Workload((GradientTensor((1000, 1000)),), 0.0, 0.0, slots=2, frozen_bytes=7.0)


@pytest.mark.parametrize(
    ("shard", "accumulation", "gradients", "optimizer"),
    [
        ("none", 1, P, 2 * P),
        ("none", 4, 2 * P, 2 * P),
        ("optimizer", 4, 2 * P, 2 * P / 8),
        ("gradients", 1, P, 2 * P / 8),
        ("gradients", 4, P + P / 8, 2 * P / 8),
    ],
)
def test_accumulated_gradients_alone_are_divided(shard, accumulation, gradients, optimizer):
    held = memory_of(ADAM, 8, shard, 2**20, accumulation)
    assert held.gradients + held.accumulated == gradients
    assert held.optimizer == optimizer
    assert held.weights == P + 7


def test_weights_are_divided_but_for_those_of_two_layers():
    layers = Workload((GradientTensor((1000, 1000)),) * 16, 0.0, 0.0, slots=2, frozen_bytes=7.0)
    held = memory_of(layers, 4, "parameters", 2**20, accumulation=2)
    assert held.weights == 4 * P + 7
    assert held.gradients == 4 * P + P  # and the one that is sent
    assert (held.accumulated, held.optimizer) == (4 * P, 8 * P)
    assert held.traveling == 2 * P + 2 * P
    alone = memory_of(layers, 1, "parameters", 2**20)
    assert (alone.weights, alone.gradients, alone.traveling) == (16 * P + 7, 16 * P, 0)


def test_gradients_that_a_compression_waits_for_are_whole_and_so_is_what_it_keeps():
    layers = Workload((GradientTensor((1000, 1000)),) * 16, 0.0, 0.0, slots=2)
    plain, compressed = (
        memory_of(layers, 4, "parameters", 2**20, 2, compresses_updates=each)
        for each in (False, True)
    )
    assert (compressed.gradients, compressed.residual) == (16 * P, 16 * P)
    assert compressed.total == plain.total + 11 * P + 16 * P


def test_what_fits_from_a_number_on_fits_on_all_more():
    """Alone nothing travels: what fits on one rank need not fit on two."""
    for limit in range(1, 40):

        def held(ranks):
            return memory_of(ADAM, ranks, "optimizer", 2**20).total

        found = ranks_to_fit(held, limit * 1e6)
        assert all(
            (held(ranks) <= limit * 1e6) == (found is not None and ranks >= found)
            for ranks in range(2, 300)
        )
        assert found != 1 or held(1) <= limit * 1e6
