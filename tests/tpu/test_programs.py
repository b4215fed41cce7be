"""Programs that nobody wrote for tfdp train on chips as on one device, or are refused by name.

One device is TensorFlow's own, without a strategy: it knows nothing of what is tested.
"""

import functools

import pytest
from tpu.cells import CELLS

from benchmarks.partitioners_programs import difference, programs, trained

pytest.importorskip("jax")

PROGRAMS = programs() | CELLS
COUNTS = (2, 4, 8)

# Of the largest value of its kind; and of the largest change of the model's weights.
TOLERANCE, TOLERANCE_OF_CHANGES = 1e-5, 1e-4

# XLA draws other numbers than TensorFlow's kernels: one device is compiled, too, by TensorFlow.
COMPILED = set()

# What no chip can run, and what is said of it.
REFUSED = {}

# One for each: rows that no number of devices divides, a step of one's own with three tapes, what
# XLA draws, and a batch smaller than the devices.
FAST = {("a short last batch", 4), ("physics_informed", 2)}


def cases():
    """Every program that can be compiled, on each number of devices."""
    for name in PROGRAMS:
        for count in COUNTS:
            if name not in REFUSED:
                marks = [pytest.mark.slow]
                marks += [] if (name, count) in FAST else [pytest.mark.exhaustive]
                yield pytest.param(name, count, marks=marks, id=f"{name}-{count}-devices")


@functools.cache
def on_one_device(name):
    return trained(PROGRAMS[name], is_compiled=name in COMPILED)


@pytest.mark.parametrize(("name", "count"), list(cases()))
def test_a_program_makes_on_devices_what_it_makes_on_one(name, count, on_devices):
    expected = on_one_device(name)
    found = trained(PROGRAMS[name], on_devices(count))
    assert difference(found.values, expected.values) <= TOLERANCE
    assert difference(found.changes, expected.changes) <= TOLERANCE_OF_CHANGES
    assert found.on_devices
    assert not found.unlike


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_chip_can_run_is_refused_by_name(name, on_devices):
    error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        trained(PROGRAMS[name], on_devices(2))
