"""What Keras' users do trains on chips as on one device: the cells, and the benchmark's cases.

One device is TensorFlow's own, without a strategy: it knows nothing of what is tested.
"""

import functools
import pathlib

import pytest
from strategy.xla.cells import CELLS

from benchmarks.partitioners_programs import CASES, difference, programs, trained

pytest.importorskip("jax")

PROGRAMS = {name: run for name, run in programs().items() if name in CASES} | CELLS
COUNTS = (2, 4, 8)

# Of the largest value of its kind; and of the largest change of the model's weights.
TOLERANCE, TOLERANCE_OF_CHANGES = 1e-5, 1e-4

# XLA draws other numbers than TensorFlow's kernels: one device is compiled, too, by TensorFlow.
DRAWING = {"`Dropout` and `GaussianNoise`", "images"}
# XLA rounds between operations that TensorFlow's kernels fuse, or does not where these do.
HALF_PRECISION = {"mixed_float16", "mixed_bfloat16"}
# So does a table's optimizer whose steps are differences of powers: these amplify it.
ROUNDING = {"table_Ftrl"}
# Half precision has 11 bits: where sums have another order, another last one.
TOLERANCE_OF_HALF = 1e-3

# Rows that no number of devices divides, fewer rows than devices, draws, what a callback writes.
FAST = {
    *(("a short last batch", 4), ("a last batch smaller than the replicas", 8)),
    *(("`Dropout` and `GaussianNoise`", 4), ("weights_read_and_written_between_batches", 2)),
    *(("loop_of_steps", 4), ("steps_in_a_graph", 4), ("epochs_in_a_graph", 4), ("adversaries", 4)),
}

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "xla" / "figures.md"


def cases():
    """Every program, on each number of devices."""
    for name in PROGRAMS:
        for count in COUNTS:
            marks = [pytest.mark.slow]
            marks += [] if (name, count) in FAST else [pytest.mark.exhaustive]
            yield pytest.param(name, count, marks=marks, id=f"{name}-{count}-devices")


@functools.cache
def on_one_device(name):
    return trained(PROGRAMS[name], is_compiled=name in DRAWING | HALF_PRECISION | ROUNDING)


@pytest.mark.parametrize(("name", "count"), list(cases()))
def test_a_program_makes_on_devices_what_it_makes_on_one(name, count, on_devices):
    expected = on_one_device(name)
    found = trained(PROGRAMS[name], on_devices(count))
    is_half = name in HALF_PRECISION
    of_values = TOLERANCE_OF_HALF if is_half else TOLERANCE
    of_changes = TOLERANCE_OF_HALF if is_half else TOLERANCE_OF_CHANGES
    assert difference(found.values, expected.values) <= of_values
    assert difference(found.changes, expected.changes) <= of_changes
    assert found.on_devices
    assert not found.unlike


def test_the_page_says_how_many_there_are():
    assert f"{len(PROGRAMS)} of {len(PROGRAMS)} cells" in PAGE.read_text()
