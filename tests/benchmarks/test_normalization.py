"""The benchmark of batch normalization compares rounds in pairs."""

from benchmarks.normalization import _cells


def test_its_ratios_are_of_the_rounds_in_turn():
    seconds = {"whole_batch": [0.2, 0.3, 0.4, 0.9], "per_replica": [0.1, 0.2, 0.2, 0.3]}
    collectives = {"whole_batch": 9, "per_replica": 2}
    assert _cells(seconds, collectives) == ["350", "200", "9, 2", "1.75", "2.00 (2.00-2.00)"]
