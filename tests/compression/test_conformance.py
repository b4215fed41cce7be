"""What holds for every compression of updates, and each one's algorithm in NumPy.

A new compression needs a row in `CASES`; a test fails where it is missing.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
import tiers
from compression import oracles

from tfdp import compression as compressions
from tfdp.base.sharding import even_sharding
from tfdp.compression import ErrorFeedback, Int8, PowerSGD, RandomK, Sign, TopK

SHAPES = [(40, 30), (20, 3, 7)]
SIZES = [math.prod(shape) for shape in SHAPES]


@dataclasses.dataclass(frozen=True)
class Case:
    """A compression, its oracle, and its bytes.

    Attributes:
      of: The compression.
      oracle: The sum of one gradient in NumPy; see `oracles`.
      bytes_sent: The bytes that a rank sends for `SHAPES`, as a function of n.
      tolerance: Of the largest number, between float32 and float64. None: where float32 rounds to
        another side of a level, a number is a level off.
    """

    of: compressions.UpdateCompression
    oracle: Callable
    bytes_sent: Callable
    tolerance: float | None = 1e-5


def blocks(block, n):
    """The number of blocks, with those that fill up the chunks."""
    whole = sum(-(-size // block) for size in SIZES[:-1])
    last = SIZES[-1]
    return -(-(whole * block + last) // (block * n)) * n


def int8_bytes(n, block=64):
    return 2 * (n - 1) * blocks(block, n) // n * (block + 4)


def sign_bytes(n, block=64):
    return 2 * (n - 1) * blocks(block, n) // n * (block // 8 + 4)


def top_k_bytes(n, ratio=0.05):
    return (n - 1) * 8 * sum(math.ceil(ratio * size) for size in SIZES)


def ring_bytes(n, numbers):
    """What TensorFlow's ring sends of a buffer, by the model of costs."""
    return 2 * (n - 1) * 4 * numbers / n


def random_k_bytes(n, ratio=0.1):
    return ring_bytes(n, sum(math.ceil(ratio * size) for size in SIZES))


def power_sgd_bytes(n, rank=2):
    rows, columns = zip((40, 30), (20, 21), strict=True)
    return ring_bytes(n, rank * sum(rows)) + ring_bytes(n, rank * sum(columns))


FREE = {"smallest": 1}
CASES = {
    "Int8": Case(Int8(block=64, seed=3, **FREE), oracles.int8, int8_bytes, None),
    "Sign": Case(Sign(block=64, **FREE), oracles.sign, sign_bytes, None),
    "TopK": Case(TopK(0.05, **FREE), oracles.top_k, top_k_bytes),
    "RandomK": Case(RandomK(0.1, seed=3, **FREE), oracles.random_k, random_k_bytes),
    "PowerSGD": Case(PowerSGD(2, **FREE), oracles.power_sgd, power_sgd_bytes, 1e-4),
}
CUT = {"several blocks a chunk": (50, 30), "one block": (64,), "less": (3, 5), "one": (1,)}
every_compression = pytest.mark.parametrize("name", CASES)
every_compression_and_number = pytest.mark.parametrize(
    ("name", "replicas"), [(name, 3 if name != "TopK" else 2) for name in CASES]
)


def gradients_of(replicas, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype("float32") for shape in SHAPES] for _ in range(replicas)]


def assert_close(found, expected, tolerance):
    largest = np.abs(expected).max()
    wrong = np.abs(found - expected) > (tolerance or 1e-5) * largest
    # One draw in some 10,000 lies so near a level that float32 rounds to the other side.
    assert wrong.mean() <= (0.0 if tolerance else 0.004), (wrong.sum(), wrong.size)


def test_every_compression_has_a_row():
    concrete = [
        name
        for name in compressions.__all__
        if inspect.isclass(kind := getattr(compressions, name))
        and issubclass(kind, compressions.AbstractLossyCompression)
        and not name.startswith("Abstract")
    ]
    assert sorted(concrete) == sorted(CASES)


@every_compression_and_number
def test_a_sum_is_what_numpy_computes_with_one_value_for_all(name, replicas, sums_on):
    case = CASES[name]
    run = sums_on(case.of, replicas, SHAPES)
    before = [
        {slot: made.first().numpy() for slot, made in case.of.slots(shape).items()}
        for shape in SHAPES
    ]
    for number in range(2):
        gradients = gradients_of(replicas, number)
        outcomes = run(gradients, number)
        if name not in ("Int8", "Sign"):
            for index in range(len(SHAPES)):
                mine = [own[index] for own in gradients]
                total, own, before[index] = case.oracle(case.of, mine, index, number, before[index])
                assert_close(outcomes[0].sums[index], total, case.tolerance)
                for rank, outcome in enumerate(outcomes):
                    assert_close(outcome.own[index], own[rank], case.tolerance)
        for index in range(len(SHAPES)):
            copies = {outcome.sums[index].tobytes() for outcome in outcomes}
            assert len(copies) == 1
            terms = np.sum([outcome.own[index] for outcome in outcomes], 0, "float64")
            np.testing.assert_allclose(terms, outcomes[0].sums[index], rtol=1e-5, atol=1e-5)
        assert {outcome.bytes_sent for outcome in outcomes} == {case.bytes_sent(replicas)}


@every_compression
def test_the_payload_is_what_one_of_two_replicas_sends(name):
    case = CASES[name]
    for compression in (case.of, ErrorFeedback(case.of)):
        assert sum(map(compression.payload_bytes, SHAPES)) == case.bytes_sent(2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Int8", "Sign"])
@pytest.mark.parametrize("kind", tiers.cases(CUT, ["several blocks a chunk"]))
def test_a_sum_in_chunks_is_what_numpy_computes(name, kind, sums_on):
    case, shape = CASES[name], CUT[kind]
    run = sums_on(case.of, 3, [shape])
    rng = np.random.default_rng(1)
    gradients = [[rng.normal(size=shape).astype("float32")] for _ in range(3)]
    outcomes = run(gradients, 5)
    total, own, _ = case.oracle(case.of, [each for (each,) in gradients], 0, 5)
    assert_close(outcomes[0].sums[0], total, case.tolerance)
    for rank, outcome in enumerate(outcomes):
        assert_close(outcome.own[0], own[rank], case.tolerance)


PARTS = {
    "Int8": (Int8(block=64, seed=3, **FREE), oracles.int8_parts, 64 + 4),
    "Sign": (Sign(block=64, **FREE), oracles.sign_parts, 64 // 8 + 4),
}
SHAPES_OF_PARTS = {"uneven": (50, 31), "less": (4, 9), "columns": (1, 300), "one": (4,)}
every_sum_of_parts = pytest.mark.parametrize("name", PARTS)


def test_every_compression_that_sums_parts_has_a_row():
    assert sorted(name for name, case in CASES.items() if case.of.sums_parts) == sorted(PARTS)


@every_sum_of_parts
@pytest.mark.parametrize("kind", tiers.cases(SHAPES_OF_PARTS, ["uneven"]))
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2, 4))
def test_parts_of_a_sum_are_what_numpy_computes_and_are_rounded_once(name, kind, replicas, sums_on):
    (of, oracle, bytes_of_block), shape = PARTS[name], SHAPES_OF_PARTS[kind]
    (cut,) = even_sharding([shape], replicas)
    run = sums_on(of, replicas, [shape], cuts=[cut])
    rng = np.random.default_rng(2)
    for step in range(2):
        gradients = [rng.normal(size=shape).astype("float32") for _ in range(replicas)]
        outcomes = run([[own] for own in gradients], step)
        total, own = oracle(of, gradients, cut, 0, step)
        parts = [outcome.sums[0] for outcome in outcomes]
        assert [part.shape for part in parts] == list(map(cut.part_shape, range(replicas)))
        assert_close(np.concatenate(parts, cut.axis), total, None if name == "Int8" else 1e-5)
        for rank, outcome in enumerate(outcomes):
            assert_close(outcome.own[0], own[rank], None if name == "Int8" else 1e-5)
            blocks = max(-(-cut.size(other) // 64) for other in range(replicas))
            assert outcome.bytes_sent == (replicas - 1) * blocks * bytes_of_block


@pytest.mark.slow
@every_sum_of_parts
def test_parts_of_many_gradients_travel_in_blocks_of_their_own(name, sums_on):
    """The last block of a part has the scale of what it holds, and each part is its gradient's."""
    shapes = [(65,), (3, 5), (41, 100)]
    cuts = even_sharding(shapes, 3)
    given = [np.full(shape, value) for shape, value in zip(shapes, [127, -254, 381], strict=True)]
    for outcome in sums_on(PARTS[name][0], 3, shapes, cuts=cuts)([given] * 3):
        for part, whole in zip(outcome.sums, given, strict=True):
            np.testing.assert_allclose(part, np.full(part.shape, 3 * whole.flat[0]), rtol=1e-6)


def test_int8_is_nearer_to_the_sum_in_parts_than_whole(sums_on):
    (of, _, _), shape = PARTS["Int8"], (64, 96)
    gradients = [np.random.default_rng(k).normal(size=shape) for k in range(3)]
    exact = sum(each.astype("float32").astype("float64") for each in gradients)
    (cut,) = even_sharding([shape], 3)
    given = [[own] for own in gradients]
    in_parts = [each.sums[0] for each in sums_on(of, 3, [shape], cuts=[cut])(given)]
    whole = sums_on(of, 3, [shape])(given)[0].sums[0]
    errors = [
        np.square(found - exact).mean() for found in (np.concatenate(in_parts, cut.axis), whole)
    ]
    # Three terms are rounded; of the whole their sum, too, whose numbers are sqrt(3) times larger.
    assert errors[0] < 0.6 * errors[1]


@every_sum_of_parts
def test_with_feedback_nothing_is_lost_of_parts(name, sums_on):
    cuts = even_sharding(SHAPES, 2)
    run = sums_on(ErrorFeedback(PARTS[name][0]), 2, SHAPES, cuts=cuts)
    given, applied = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    for number in range(4):
        gradients = gradients_of(2, number)
        outcomes = run(gradients, number)
        for index, cut in enumerate(cuts):
            given[index] += sum(own[index].astype("float64") for own in gradients)
            parts = [outcome.sums[index] for outcome in outcomes]
            applied[index] += np.concatenate(parts, cut.axis)
            left = sum(outcome.slots[index]["residual"].astype("float64") for outcome in outcomes)
            np.testing.assert_allclose(applied[index] + left, given[index], atol=3e-5)


@pytest.mark.slow
@every_sum_of_parts
@pytest.mark.parametrize("bad", tiers.first_of(np.inf, np.nan, -np.inf))
def test_what_is_not_finite_reaches_all_parts_and_no_residual(name, bad, sums_on):
    cuts = even_sharding(SHAPES[:1], 3)
    run = sums_on(ErrorFeedback(PARTS[name][0]), 3, SHAPES[:1], cuts=cuts)
    before = [outcome.slots[0] for outcome in run([own[:1] for own in gradients_of(3)])]
    gradients = [own[:1] for own in gradients_of(3, 1)]
    gradients[1][0][17, 3] = bad
    for outcome, kept in zip(run(gradients, 1), before, strict=True):
        assert not np.isfinite(outcome.sums[0]).any()
        np.testing.assert_array_equal(outcome.slots[0]["residual"], kept["residual"])


@pytest.mark.slow
def test_the_last_block_of_a_gradient_has_the_scale_of_what_it_holds(sums_on):
    """A gradient of one number all over comes back as it is, wherever its last block ends."""
    shapes = [(65,), (3, 5), (41, 100)]
    given = [np.full(shape, value) for shape, value in zip(shapes, [1, -0.5, 2], strict=True)]
    for outcome in sums_on(Sign(block=64, smallest=1), 3, shapes)([given] * 3):
        for total, expected in zip(outcome.sums, [3.0, -1.5, 6.0], strict=True):
            np.testing.assert_allclose(total, expected, rtol=1e-6)


@every_compression
def test_with_feedback_nothing_is_lost(name, sums_on):
    """After any number of updates the sums and the residuals are all that was given."""
    run = sums_on(ErrorFeedback(CASES[name].of), 2, SHAPES)
    given = [np.zeros(shape) for shape in SHAPES]
    applied = [np.zeros(shape) for shape in SHAPES]
    for number in range(4):
        gradients = gradients_of(2, number)
        outcomes = run(gradients, number)
        for index in range(len(SHAPES)):
            given[index] += sum(own[index].astype("float64") for own in gradients)
            applied[index] += outcomes[0].sums[index]
            left = sum(outcome.slots[index]["residual"].astype("float64") for outcome in outcomes)
            np.testing.assert_allclose(applied[index] + left, given[index], atol=3e-5)


@pytest.mark.slow
@every_compression
@pytest.mark.parametrize("bad", tiers.first_of(np.inf, np.nan, -np.inf))
def test_what_is_not_finite_reaches_all_replicas_and_no_residual(name, bad, sums_on):
    run = sums_on(ErrorFeedback(CASES[name].of), 2, SHAPES[:1])
    before = [outcome.slots[0] for outcome in run([own[:1] for own in gradients_of(2)])]
    gradients = [own[:1] for own in gradients_of(2, 1)]
    gradients[1][0][17, 3] = bad
    for outcome, kept in zip(run(gradients, 1), before, strict=True):
        assert not np.isfinite(outcome.sums[0]).all()
        for slot, value in kept.items():
            np.testing.assert_array_equal(outcome.slots[0][slot], value)


@pytest.mark.slow
@every_compression
def test_zeros_stay_zeros(name, sums_on):
    run = sums_on(ErrorFeedback(CASES[name].of), 2, SHAPES)
    nothing = [[np.zeros(shape) for shape in SHAPES]] * 2
    for number in range(2):
        for outcome in run(nothing, number):
            for total in outcome.sums:
                np.testing.assert_array_equal(total, 0.0)
    # and what comes after them is sent again
    (outcome, _) = run(gradients_of(2), 2)
    assert all(np.any(total) for total in outcome.sums)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Int8", "RandomK"])
def test_a_sum_is_unbiased_over_the_draws(name, sums_on):
    """The mean over draws comes near the exact sum as their number grows."""
    run = sums_on(CASES[name].of, 2, SHAPES[:1])
    gradients = [own[:1] for own in gradients_of(2)]
    exact = sum(own[0].astype("float64") for own in gradients)
    draws = np.array([run(gradients, number)[0].sums[0] for number in range(400)])
    errors = draws.mean(0, dtype="float64") - exact
    deviations = draws.std(0) / np.sqrt(len(draws)) + 1e-7
    assert np.mean(np.abs(errors / deviations) > 3) < 0.02  # 0.003 of a normal distribution
    assert abs(np.mean(errors / deviations)) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Sign", "TopK", "RandomK", "PowerSGD"])
def test_with_feedback_a_compressor_contracts(name, sums_on):
    """|x - C(x)|^2 <= (1 - delta) |x|^2 with delta above 0; of the sum where the owner rounds."""
    run = sums_on(ErrorFeedback(CASES[name].of), 2, SHAPES[:1])
    gradients = [own[:1] for own in gradients_of(2)]
    for outcome, own in zip(run(gradients), gradients, strict=True):
        left = np.sum(outcome.slots[0]["residual"].astype("float64") ** 2)
        whole = np.sum(own[0].astype("float64") ** 2)
        least = {"TopK": 0.05, "RandomK": 0.05, "PowerSGD": 0.05, "Sign": 0.2}[name]
        assert left <= (1 - least) * whole


@pytest.mark.slow
def test_two_updates_and_two_variables_are_rounded_by_other_draws(sums_on):
    run = sums_on(CASES["Int8"].of, 2, [(64, 3), (64, 3)])
    same = np.random.default_rng(0).normal(size=(64, 3))
    first = run([[same, same]] * 2, 0)
    assert np.any(first[0].sums[0] != first[0].sums[1])
    assert np.any(run([[same, same]] * 2, 1)[0].sums[0] != first[0].sums[0])
    np.testing.assert_array_equal(run([[same, same]] * 2, 0)[0].sums[0], first[0].sums[0])
