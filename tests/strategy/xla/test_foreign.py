"""Programs that others wrote train under XLAStrategy as on one device, or are refused by name.

The programs are those of `tests/foreign`. One device is TensorFlow's own, without a strategy: it
knows nothing of what is tested.
"""

import functools

import pytest
import tiers
from strategy.xla.test_executables import PAGE, TOLERANCE, TOLERANCE_OF_CHANGES, TOLERANCE_OF_HALF

import tfdp
from benchmarks.partitioners_programs import (
    CASES,
    compiles,
    difference,
    programs,
    tolerance,
    trained,
)
from tfdp.errors import PartitionError

jax = pytest.importorskip("jax")

PROGRAMS = {name: run for name, run in programs().items() if name not in CASES}

# Of batches of eight and of seven examples: the first, none and the first, each with one row.
COUNTS = (2, 3, 8)

# XLA draws other numbers than TensorFlow's kernels, and rounds halves elsewhere: one device is
# compiled, too, by TensorFlow. What that cannot compile is compared with one device of JAX's.
COMPILED = {
    *("private_gradients", "consistency", "conditional_gan", "vae", "diffusion", "energy_model"),
    *("noise_for_two_batches", "imbalanced_classes", "quantiles", "bayesian_network", "simclr"),
    *("queue_of_keys", "transformer_classifier", "mixed_precision"),
}

# What XLA cannot have: a draw from a state that each device would have, and by what to draw.
REFUSED = {
    "tensorflow_noise": r"RandomStandardNormal at states.py:\d+, in call.*SeedGenerator",
    "langevin_dynamics": r"RandomStandardNormal at optimizers.py:\d+.*SeedGenerator",
}

# A loop that asks no strategy to run its steps: the host does, as one device.
ON_HOST = {"loop_of_one_device"}

# Strings before a step; several outputs and a short last batch.
FAST = {("text_vectorization", 2), ("tickets", 3)}

# They call `fit`, or a loop, in the scope: optimizers and models that steps make, state, loops of
# their own, strings, tables, what a callback decides.
INSIDE = {
    *("accumulation_by_hand", "captcha", "center_loss", "conditional_gan", "distillation"),
    *("generator", "lookahead", "low_rank_adaptation", "memory_bank", "meta_learning"),
    *("policy_gradient", "text_vectorization", "tickets", "training_loop", "transfer_learning"),
    "wide_and_deep",
}


def cases():
    """Every program that XLA takes, on each number of devices."""
    for name in PROGRAMS:
        for count in COUNTS:
            if name not in REFUSED:
                marks = [pytest.mark.slow]
                marks += [] if (name, count) in FAST else [pytest.mark.exhaustive]
                yield pytest.param(name, count, marks=marks, id=f"{name}-{count}-devices")


@functools.cache
def on_one_device(name):
    one = tfdp.XLAStrategy(jax.devices()[:1]) if not compiles(name) else None
    return trained(PROGRAMS[name], one, is_compiled=name in COMPILED)


@pytest.mark.parametrize(("name", "count"), list(cases()))
def test_a_program_makes_on_devices_what_it_makes_on_one(name, count, on_devices):
    assert_as_one_device(name, trained(PROGRAMS[name], on_devices(count)))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers.cases(sorted(INSIDE), kept={"accumulation_by_hand"}))
def test_a_program_that_runs_in_the_scope_makes_what_one_device_does(name, on_devices):
    def inside(strategy):
        with strategy.scope():
            return PROGRAMS[name](strategy)

    assert_as_one_device(name, trained(inside, on_devices(3)))


def assert_as_one_device(name, found):
    """Asserts that a program made what it makes on one device, with the same bits everywhere."""
    expected = on_one_device(name)
    is_half = tolerance(name) > TOLERANCE_OF_CHANGES
    of_values = TOLERANCE_OF_HALF if is_half else TOLERANCE
    of_changes = TOLERANCE_OF_HALF if is_half else TOLERANCE_OF_CHANGES
    assert difference(found.values, expected.values) <= of_values
    assert difference(found.changes, expected.changes) <= of_changes
    assert bool(found.on_devices) != (name in ON_HOST)
    assert not found.unlike


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_chip_can_run_is_refused_by_name_with_what_can(name, on_devices):
    with pytest.raises(PartitionError, match=REFUSED[name]):
        trained(PROGRAMS[name], on_devices(2))


def test_each_name_is_of_a_program():
    fast = {name for name, _ in FAST}
    assert COMPILED | ON_HOST | fast | INSIDE | set(REFUSED) <= set(PROGRAMS)
    assert all(map(compiles, COMPILED))


def test_the_page_says_how_many_train_so_and_names_the_others():
    page = PAGE.read_text()
    others = {*REFUSED, *ON_HOST}
    assert f"{len(PROGRAMS) - len(others)} of {len(PROGRAMS)} programs" in page
    for name in others:
        assert f"`{name}`" in page
