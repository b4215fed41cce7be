"""Differences are relative to what they are differences of, and rounding explains some."""

import numpy as np

from tfdp.verification import probes, run_differences, source_lines
from tfdp.verification.readings import GRADIENTS, LOSS, METRICS, OPTIMIZER, WEIGHTS


def array(*numbers, dtype="float32"):
    return np.array(numbers, dtype)


def test_what_is_not_finite_must_not_be_so_on_both_sides():
    nan, inf = array(np.nan), array(np.inf)
    assert (
        run_differences.difference(nan, nan, 1.0)
        == run_differences.difference(inf, inf, 1.0)
        == 0.0
    )
    for actual, expected in ((nan, array(1)), (array(1), inf), (-inf, inf), (array(1, 2), nan)):
        assert run_differences.difference(actual, expected, 1.0) == np.inf


def test_whole_numbers_agree_or_do_not():
    a, b = array(10**6, dtype="int64"), array(10**6 + 1, dtype="int64")
    assert run_differences.difference(a, a, 1e6) == 0.0
    assert run_differences.difference(a, b, 1e6) == 1.0
    c, d = array(2**53, dtype="int64"), array(2**53 + 1, dtype="int64")
    assert run_differences.difference(c, d, 2.0**53) == 1.0


def test_complex_numbers_differ_by_both_parts_and_texts_wholly():
    a, b = array(3 + 4j, dtype="complex64"), array(3 + 3j, dtype="complex64")
    assert run_differences.largest([a, b, array(b"much", dtype=object)]) == 5.0
    assert run_differences.difference(a, b, 5.0) == 0.2
    one, other = array(b"a", b"b", dtype=object), array(b"a", b"c", dtype=object)
    assert run_differences.difference(one, one, 0.0) == 0.0
    assert run_differences.difference(one, other, 0.0) == np.inf


def test_weights_are_measured_by_the_largest_and_slots_by_those_of_their_kind():
    reference = {
        (WEIGHTS, "a/kernel"): [array(1, 100)],
        (WEIGHTS, "a/bias"): [array(0)],
        (OPTIMIZER, "adam/a_kernel_momentum"): [array(10)],
        (OPTIMIZER, "adam/a_kernel_velocity"): [array(0.5)],
        (LOSS, "loss"): [array(2)],
    }
    moved = {key: [copies[0] + array(1)] for key, copies in reference.items()}
    table = run_differences.differences([reference], [moved])
    assert table == {
        (0, WEIGHTS, "a/kernel"): 0.01,
        (0, WEIGHTS, "a/bias"): 0.01,
        (0, OPTIMIZER, "adam/a_kernel_momentum"): 0.1,
        (0, OPTIMIZER, "adam/a_kernel_velocity"): 2.0,
        (0, LOSS, "loss"): 0.5,
    }


def test_each_replicas_copy_is_compared():
    reference = [{(WEIGHTS, "a"): [array(4)]}]
    table = run_differences.differences(reference, [{(WEIGHTS, "a"): [array(4), array(5)]}])
    assert table == {(0, WEIGHTS, "a"): 0.25}


def test_what_one_side_lacks_is_far_but_not_a_variable_nor_a_part():
    reference = {(LOSS, "loss"): [array(1)], (WEIGHTS, "a"): [array(1)]}
    other = {(LOSS, "other_loss"): [array(1)], (OPTIMIZER, "slot"): [array(1)]}
    gradients = {(GRADIENTS, "a"): [array(1)]}
    table = run_differences.differences([reference], [other | gradients])
    assert table == {(0, LOSS, "loss"): np.inf, (0, LOSS, "other_loss"): np.inf}


def test_a_difference_counts_above_the_tolerance_and_ten_times_the_control():
    table = {(1, METRICS, "a"): 1e-3, (1, METRICS, "b"): 1e-6, (2, METRICS, "c"): 1e-3}
    controls = [{(5, METRICS, "a"): 2e-4}, {(1, METRICS, "c"): 9e-5}]
    assert run_differences.apart(table, controls, 1e-5) == {(2, METRICS, "c"): 1e-3}
    assert run_differences.merged([table, {(1, METRICS, "a"): 1.0}])[1, METRICS, "a"] == 1.0


def test_layers_are_compared_up_to_a_call_that_only_one_run_makes():
    first, second = array(2, 4), array(1)
    reference = [
        probes.LayerCall("a", (first,)),
        probes.LayerCall("b", (first, second)),
    ]
    moved = [
        probes.LayerCall("a", (first,)),
        probes.LayerCall("b", (first + array(1), second)),
    ]
    expected = {(0, "layer output", "a"): 0.0, (1, "layer output", "b"): 0.25}
    assert probes.differences(reference, moved) == expected
    assert probes.differences(reference, [*moved[:1], probes.LayerCall("c", (second,))]) == {
        (0, "layer output", "a"): 0.0
    }
    assert probes.differences(reference, []) == {}, "other processes are told nothing"
    (found,) = probes.differences(reference[:1], [probes.LayerCall("a", (second,))]).values()
    assert found == np.inf


def test_a_line_is_another_if_it_makes_other_operations_or_other_constants():
    one, two = (source_lines.Operation("a.py:1", "Const", value) for value in (b"1", b"2"))
    product = source_lines.Operation("a.py:2", "Mul", b"")
    assert source_lines.first_other_line([one, product], [one, product]) == ""
    assert source_lines.first_other_line([one, product], [two, product]) == "a.py:1"
    assert source_lines.first_other_line([one, product], [one, product, product]) == "a.py:2"
    assert source_lines.first_other_line([], [source_lines.Operation("", "Mul", b"")]) == ""
