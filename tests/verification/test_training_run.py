"""A run is where it is told to be, and a control's weights move by one unit in the last place."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from verification import faults, programs

from tfdp.keras._keras import NAME_COUNTS, global_state
from tfdp.strategy._tensorflow_programs import context
from tfdp.verification import training_run
from tfdp.verification.batches import Batches
from tfdp.verification.training_run import TrainedProgram, train

pytestmark = pytest.mark.slow


def program(build, **options):
    return TrainedProgram(build, Batches(faults.batches(), 1), **options)


def test_one_devices_runs_are_where_they_are_told():
    run = train(program(faults.dense, device="CPU:1"))
    assert {variable.value.device[-5:] for variable in run.model.weights} == {"CPU:1"}


@pytest.mark.parametrize(("build", "units"), [(faults.dense, 1), (programs.half_precision, 2**16)])
def test_weights_move_by_a_unit_of_the_dtype_that_they_are_computed_in(build, units):
    before = train(program(build)).steps[0]
    offsets = train(program(build), move=1).offsets
    kernels = [path for path in offsets if path.endswith("kernel")]
    assert len(kernels) == 2
    moves = np.concatenate([offsets[path].ravel() for path in kernels])
    assert (moves > 0).any() and (moves < 0).any()
    for path in kernels:
        (weight,) = before["weights", path]
        np.testing.assert_allclose(np.abs(offsets[path]), units * np.spacing(np.abs(weight)))
    assert all(not offset.any() for path, offset in offsets.items() if path not in kernels)


def test_both_parts_of_complex_weights_move():
    before = train(program(programs.turned)).steps[0]["weights", "turned/turn"][0]
    offset = train(program(programs.turned), move=1).offsets["turned/turn"]
    for part, of in ((offset.real, before.real), (offset.imag, before.imag)):
        np.testing.assert_allclose(np.abs(part), np.spacing(np.abs(of)))


def test_layers_outputs_are_kept_of_the_step_that_is_watched_and_in_order():
    calls = train(program(lambda: faults.dense(keras.layers.Dropout(0.5))), watch=1).calls
    paths = [call.path for call in calls.in_order()]
    assert paths[:3] == ["first", "dropout", "last"]
    assert paths[-1].startswith("functional") or len(paths) == 3, paths


@pytest.mark.parametrize(("asked", "compiles"), [("auto", False), (True, True), (False, False)])
def test_one_device_compiles_where_a_strategy_would(asked, compiles, monkeypatch):
    kind = next(each for each in keras.Model.__mro__ if "_resolve_auto_jit_compile" in vars(each))
    monkeypatch.setattr(kind, "_resolve_auto_jit_compile", lambda model: True)  # as on a GPU
    run = train(program(lambda: faults.dense(jit_compile=asked)))
    assert run.model.jit_compile is compiles


def test_names_are_counted_anew_and_go_on_where_they_were():
    keras.utils.clear_session(free_memory=False)
    keras.layers.Dense(1)
    with training_run.fresh(1):
        assert keras.layers.Dense(1).name == "dense"
        assert global_state.get_global_attribute(NAME_COUNTS)["dense"] == 1
    assert keras.layers.Dense(1).name == "dense_1"


def draws():
    return np.random.random(), tf.random.uniform([]).numpy(), keras.random.uniform([]).numpy()


def test_every_generator_goes_on_where_it_was():
    harness.start_over(5)  # `set_random_seed` of Keras before 3.13 is no fresh start
    first, second = draws(), draws()
    harness.start_over(5)
    assert draws() == first
    with training_run.fresh(1):
        inside = draws()
    assert draws() == second
    with training_run.fresh(1):
        assert draws() == inside


def test_a_process_without_seeds_stays_without():
    eager = context()
    before = eager._seed
    eager._seed = None
    try:
        with training_run.fresh(1):
            assert eager._seed == 1
        assert eager._seed is None
    finally:
        eager._seed = before
