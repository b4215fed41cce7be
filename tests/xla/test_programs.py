"""Programs that nobody wrote for tfdp train on chips as on one device, or are refused by name.

One device is TensorFlow's own, without a strategy: it knows nothing of what is tested.
"""

import functools

import pytest
import tiers
from xla.cells import CELLS

from benchmarks.partitioners_programs import difference, programs, trained
from tfdp.errors import PartitionError

pytest.importorskip("jax")

PROGRAMS = programs() | CELLS
COUNTS = (2, 4, 8)

# Of the largest value of its kind; and of the largest change of the model's weights.
TOLERANCE, TOLERANCE_OF_CHANGES = 1e-5, 1e-4

# XLA draws other numbers than TensorFlow's kernels: one device is compiled, too, by TensorFlow.
DRAWING = {
    *("`Dropout` and `GaussianNoise`", "private_gradients", "consistency", "conditional_gan"),
    *("vae", "diffusion", "energy_model", "noise_for_two_batches", "imbalanced_classes", "images"),
    *("quantiles", "bayesian_network", "queue_of_keys", "transformer_classifier", "simclr"),
}
# XLA rounds between operations that TensorFlow's kernels fuse, or does not where these do.
HALF_PRECISION = {"mixed_float16", "mixed_bfloat16", "mixed_precision"}
# So does a table's optimizer whose steps are differences of powers: these amplify it.
ROUNDING = {"table_Ftrl"}
# Half precision has 11 bits: where sums have another order, another last one.
TOLERANCE_OF_HALF = 1e-3

# What no chip can run, and what is said of it.
REFUSED = {
    "tensorflow_noise": (PartitionError, r"RandomStandardNormal at states.py:\d+, in call"),
    "langevin_dynamics": (PartitionError, r"RandomStandardNormal at optimizers.py:\d+"),
    "mixup_in_step": (PartitionError, r"StatelessRandomGammaV3 at own_steps.py:\d+, in train_step"),
    "augmentation": (PartitionError, "ImageProjectiveTransformV3"),
}

# A loop that asks no strategy to run its steps: the host does.
ON_HOST = {"loop_of_one_device"}

# Rows that no number of devices divides, fewer rows than devices, draws, what a callback writes.
FAST = {
    *(("a short last batch", 4), ("a last batch smaller than the replicas", 8)),
    ("text_vectorization", 4),
    ("tickets", 4),  # several outputs and a short last batch
    *(("`Dropout` and `GaussianNoise`", 4), ("weights_read_and_written_between_batches", 2)),
    *(("loop_of_steps", 4), ("steps_in_a_graph", 4), ("epochs_in_a_graph", 4), ("adversaries", 4)),
}


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
    assert bool(found.on_devices) != (name in ON_HOST)
    assert not found.unlike


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers.cases(REFUSED, kept={"wide_and_deep", "tensorflow_noise"}))
def test_what_no_chip_can_run_is_refused_by_name(name, on_devices):
    error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        trained(PROGRAMS[name], on_devices(2))
