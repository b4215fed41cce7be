"""`tfdp.verify` finds what parts, names it, and passes what is right."""

import pathlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from verification import faults, programs

import tfdp
from tfdp.base.determinism._keras import forget_global_generator
from tfdp.errors import VerificationError
from tfdp.verification import source_lines
from tfdp.verification.batches import Batches

pytestmark = pytest.mark.slow


def verified(build, batches=None, replicas=2, **options):
    batches = faults.batches() if batches is None else batches
    return tfdp.verify(build, batches, strategy=harness.strategy(replicas), **options)


TELLING_FAULTS = {"layer", "gradients", "update", "state of complex64"}


@pytest.mark.parametrize(
    "name",
    tiers.cases(faults.FAULTS, TELLING_FAULTS),
)
def test_a_planted_fault_is_found_and_named(name):
    fault = faults.FAULTS[name]
    report = verified(fault.build)
    assert not report
    first = report.parted[0]
    assert (first.part, first.step) == (fault.part, fault.step)
    assert first.size > 1e-3 > 1e-6 > first.control
    assert fault.cause in report.cause
    assert fault.thing is None or source_lines.place(fault.thing) in report.cause
    assert fault.reason in report.reason and "read a number of replicas" in report.reason
    with pytest.raises(VerificationError) as caught:
        report.check()
    assert str(caught.value).strip() == repr(report)


@pytest.mark.exhaustive("test_a_planted_fault_is_found_and_named")
def test_the_line_that_is_traced_otherwise_is_named():
    lines = pathlib.Path(faults.__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, start=1) if "the line at fault" in line]
    report = verified(faults.FAULTS["layer"].build)
    assert report.reason.startswith(f"what faults.py:{number} computes is not what")


RIGHT = [
    programs.dropping,
    *(
        pytest.param(build, marks=pytest.mark.exhaustive)
        for build in (
            programs.accumulating,
            *(programs.half_precision, programs.adversaries, programs.compiled),
            programs.turned,
            *(programs.eager, programs.lazy, programs.scaled),
        )
    ),
]


@pytest.mark.parametrize("build", RIGHT, ids=lambda build: build.__name__)
def test_a_right_program_passes_on_uneven_batches(build):
    batches = faults.batches((7, 8, 2))
    batches = programs.with_an_overflow() if build is programs.scaled else batches
    report = verified(build, batches, replicas=3).check()
    assert report.replicas == 3 and not report.parted
    seen = {difference.part for difference in report.agreeing}
    assert {"loss", "weights"} <= seen
    assert ("gradients" in seen) == (build is not programs.compiled)


TELLING_STEPS = ("Python", "update")


@pytest.mark.parametrize("name", tiers.cases(programs.OF_ONE_STEP, TELLING_STEPS))
def test_what_is_traced_once_passes(name):
    verified(programs.OF_ONE_STEP[name], faults.batches((7, 8, 2)), replicas=3).check()


def trained(build, batches, replicas):
    """The oracle: what training left behind."""

    def use(model):
        logs = harness.Trace()
        model.fit(Batches(batches, 3).dataset(), verbose=0, shuffle=False, callbacks=[logs])
        return logs.steps

    return harness.train(build, use, replicas)


TELLING = ("a codebook",)


@pytest.mark.parametrize(
    "name",
    tiers.cases(programs.HARD, TELLING),
)
def test_what_it_says_of_hard_programs_is_what_training_shows(name):
    build, batches = programs.HARD[name], faults.batches((7, 8, 2))
    expected, actual = (trained(build, batches, replicas) for replicas in (None, 2))
    try:
        harness.assert_same_outcome(actual, expected)
        agrees = True
    except AssertionError:
        agrees = False
    report = verified(build, batches)
    assert bool(report) == agrees, report
    assert agrees or (report.cause and report.reason)


def of_options(build=faults.dense, **options):
    return tfdp.verify(build, faults.batches(), strategy=harness.strategy(2, **options))


@pytest.mark.parametrize(
    "option",
    [
        {"compression": tfdp.compression.Cast("float16")},
        {"synchronization": tfdp.synchronization.LocalSGD(2)},
        {"batch_normalization": "per_replica"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_a_strategy_is_asked_for_is_called_by_design(option):
    normalizes = "batch_normalization" in option

    def build():
        return faults.dense(*[keras.layers.BatchNormalization()] * normalizes)

    report = of_options(build, **option)
    ((name, value),) = option.items()
    assert not report and report.parted[0].part == ("loss" if normalizes else "gradients")
    assert report.reason.startswith(f"by design. The strategy's `{name}={value!r}`")
    assert "nothing mends" not in report.reason


@pytest.mark.exhaustive("test_what_a_strategy_is_asked_for_is_called_by_design")
def test_what_a_strategy_is_asked_for_hides_no_fault():
    build = faults.FAULTS["layer"].build
    report = of_options(build, compression=tfdp.compression.Cast("float16"))
    assert "`own`" in report.cause and "by design" not in report.reason


def test_replicas_that_hold_different_weights_are_told():
    def build():
        model = faults.dense()
        kernel = model.trainable_variables[0].value
        for copy in getattr(kernel, "values", [])[1:]:
            copy.assign_add(tf.ones_like(copy))
        return model

    assert "nothing mends" in of_options(build).reason


def test_parts_of_gradients_are_not_compared():
    report = of_options(shard="optimizer").check()
    assert {difference.part for difference in report.agreeing} == {
        *("loss", "optimizer state", "weights")
    }


def test_sparse_gradients_weights_of_examples_and_metrics_are_compared():
    report = verified(programs.words, programs.texts(), replicas=3).check()
    parts = {difference.part for difference in report.agreeing}
    assert parts == {"loss", "layer state", "gradients", "optimizer state", "weights", "metrics"}


def test_the_control_excuses_what_rounding_makes():
    report = verified(programs.adam_before_normalization).check()
    excused = max(difference.control for difference in report.agreeing)
    assert excused > 1e-5, "the program must amplify rounding, else this shows nothing"


@pytest.mark.exhaustive("test_the_control_excuses_what_rounding_makes")
def test_the_control_excuses_no_fault():
    report = verified(lambda: programs.adam_before_normalization(faults.Seeing(name="own")))
    assert "`own/seen`" in report.cause and report.parted[0].part == "layer state"


def test_a_program_that_does_not_repeat_itself_is_called_so():
    generator = np.random.default_rng(0)

    def build():
        model = faults.dense()
        model.set_weights([generator.normal(size=w.shape) for w in model.get_weights()])
        return model

    report = verified(build)
    assert not report and report.parted[0].step == 0
    assert "does not repeat itself" in repr(report) and "without a seed" in report.reason


def seed_all(seed):
    keras.utils.set_random_seed(seed)
    forget_global_generator()  # Keras 3.11 goes on with the one that it has


def test_what_the_process_had_before_is_there_afterwards():
    seed_all(3)
    keras.layers.Dense(1)
    expected = [np.random.random(), keras.random.normal([2]).numpy()]
    seed_all(3)
    verified(programs.half_precision, steps=1)
    assert keras.config.dtype_policy().name == "float32"
    assert keras.layers.Dense(1).name == "dense_1"
    assert np.random.random() == expected[0]
    np.testing.assert_array_equal(keras.random.normal([2]).numpy(), expected[1])


def wrong(kind, text, build=faults.dense, **options):
    with pytest.raises(kind, match=text):
        verified(build, **options)


def test_what_build_must_return_is_said():
    kept = faults.dense()
    uncompiled = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    sizes = iter(range(2, 9))
    wrong(TypeError, "must be a function", build=kept)
    wrong(TypeError, "returned 'int'", build=lambda: 1)
    wrong(ValueError, "compiled model", build=lambda: uncompiled)
    wrong(ValueError, "a new model each time", build=lambda: kept)

    def other():
        model = keras.Sequential(
            [keras.Input([4]), keras.layers.Dense(next(sizes)), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        return model

    wrong(ValueError, "the same model each time.*shape \\[2\\]", build=other)


def test_a_layer_that_was_made_outside_is_refused():
    shared = keras.layers.Dense(3, name="shared")
    wrong(ValueError, "'shared/kernel' is the same one twice", build=lambda: faults.dense(shared))


def test_arguments_out_of_range_are_refused():
    wrong(ValueError, "`steps`", steps=0)
    wrong(ValueError, "`tolerance`", tolerance=0.0)
    with pytest.raises(TypeError, match="`strategy` must be"):
        tfdp.verify(faults.dense, faults.batches(), strategy=tf.distribute.get_strategy())
    with pytest.raises(ValueError, match="two replicas at least"):
        verified(faults.dense, replicas=1)
    with harness.strategy(2).scope(), pytest.raises(ValueError, match="outside of any scope"):
        tfdp.verify(faults.dense, faults.batches())


def test_without_a_strategy_all_logical_devices_take_part():
    count = len(tf.config.list_logical_devices(harness.DEVICE))
    assert tfdp.verify(faults.dense, faults.batches(), steps=1).check().replicas == count
