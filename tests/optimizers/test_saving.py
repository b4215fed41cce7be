"""What is written down comes back: configs, `.keras` files, checkpoints, another process."""

import functools
import inspect
import json
import math
import subprocess
import sys

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from optimizers import rows

from tfdp import optimizers
from tfdp.optimizers import LAMB, LARS

# What trains in these tests; a window of two is open wherever an epoch of five batches ends.
TRAINED = {
    "LARS": lambda: LARS(
        optimizers.PolynomialDecay(1.0, 40, warmup_steps=3),
        trust_coefficient=0.125,
        nesterov=True,
        exclude_from_weight_decay=["(^|/)dense_1/"],
        trust_ratio_bounds=(0.0, 2.0),
        gradient_accumulation_steps=2,
    ),
    "LAMB": lambda: LAMB(
        optimizers.Warmup(keras.optimizers.schedules.CosineDecay(0.125, 40), 3),
        weight_decay=0.25,
        exclude_from_layer_adaptation=[],
        weight_norm_bounds=(0.0, 10.0),
        global_clipnorm=1.0,
        use_ema=True,
        ema_momentum=0.5,
    ),
    "LAMB under a loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        LAMB(0.125, gradient_accumulation_steps=2), initial_scale=64.0, dynamic_growth_steps=3
    ),
}

every_row = pytest.mark.parametrize("name", rows.ROWS)
every_trained = pytest.mark.parametrize(
    "name", tiers.cases(TRAINED, ["LARS", "LAMB under a loss scale"])
)


def public_classes():
    return {n for n in optimizers.__all__ if inspect.isclass(getattr(optimizers, n))}


def test_every_public_class_has_a_row():
    assert public_classes() == set(rows.ROWS)


@every_row
def test_a_row_has_no_argument_at_its_default(name):
    found = inspect.signature(getattr(optimizers, name)).parameters
    defaults = {argument: parameter.default for argument, parameter in found.items()}
    if defaults.pop("kwargs", None) is not None:
        defaults = {**rows.keras_arguments(), **defaults}
        for other in ("clipvalue", "global_clipnorm"):  # of three, one may be given
            del defaults[other]
    row = rows.ROWS[name]()
    assert set(row) == set(defaults)
    assert not [argument for argument, default in defaults.items() if row[argument] == default]


@every_row
def test_a_config_names_every_argument_and_makes_the_same_again(name):
    made = rows.make(name)
    config = made.get_config()
    assert json.loads(json.dumps(config)) == config
    missing = set(inspect.signature(type(made)).parameters) - {"kwargs"} - set(config)
    assert not missing
    again = type(made).from_config(made.get_config())
    assert again.get_config() == config


@every_row
def test_what_is_serialized_comes_back(name):
    made = rows.make(name)
    text = json.dumps(keras.saving.serialize_keras_object(made))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is type(made)
    assert again.get_config() == made.get_config()


@every_row
def test_every_argument_is_an_attribute_or_in_one(name):
    made = rows.make(name)
    for argument, value in rows.ROWS[name]().items():
        if argument == "exclude_from_weight_decay":  # a method of Keras' is called so
            assert list(made.exclusions[argument]) == value
        elif isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            kept = made.after if argument == "after" else made._learning_rate
            assert kept.get_config() == value.get_config()
        else:
            assert getattr(made, argument) == value


@pytest.mark.parametrize("name", rows.OPTIMIZERS)
def test_keras_finds_an_optimizer_by_its_registered_name(name):
    assert keras.saving.get_registered_name(getattr(optimizers, name)) == f"tfdp>{name}"
    assert isinstance(keras.optimizers.get(f"tfdp>{name}"), getattr(optimizers, name))
    made = rows.make(name)
    for identifier in (
        {"class_name": f"tfdp>{name}", "config": made.get_config()},
        keras.optimizers.serialize(made),
        made,
    ):
        found = keras.optimizers.get(identifier)
        assert type(found) is type(made)
        assert found.get_config() == made.get_config()


def test_numbers_of_numpy_are_written_as_python_s():
    half = np.float32(0.5)
    for made in (
        LARS(
            half, half, trust_coefficient=half, weight_decay=half, weight_norm_bounds=(half, half)
        ),
        LAMB(half, half, half, half, half, trust_ratio_bounds=np.array([0.5, 1.0])),
        optimizers.PolynomialDecay(half, np.int64(10), power=half, end_learning_rate=half),
        optimizers.Warmup(half, np.int64(10), half),
    ):
        config = made.get_config()
        assert json.loads(json.dumps(config)) == config
        assert type(made).from_config(config).get_config() == config


def test_a_rate_may_be_a_whole_number_or_a_callable():
    assert float(LARS(1).learning_rate) == 1.0
    assert isinstance(LARS(weight_decay=1).weight_decay, float)
    assert math.isclose(LAMB(lambda: 0.25).learning_rate, 0.25)


@pytest.mark.parametrize("optimizer_class", [LARS, LAMB])
def test_a_variable_of_ones_own_may_be_added_as_to_any_optimizer(optimizer_class):
    optimizer = optimizer_class()
    added = optimizer.add_variable((2,), "ones", "float16")
    assert (added.dtype, added.numpy().tolist()) == ("float16", [1.0, 1.0])
    assert optimizer.add_variable((2,), name="mine").dtype == "float32"


# ---- training that is interrupted ----


def compiled(name):
    return harness.build_in_scope(lambda: harness.dense_model(TRAINED[name]()))


def goes_on(model):
    loss = harness.fit_arrays(model)["loss"]
    return harness.Outcome(harness.weights(model), harness.slots(model), loss)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Returns a function: what a model of a name leaves halfway, and how it goes on by itself."""

    @functools.cache
    def train(name):
        folder = tmp_path_factory.mktemp("halfway")
        model = compiled(name)
        harness.fit_arrays(model)
        model.save(folder / "model.keras")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.save(folder / "checkpoint")
        return folder, model.optimizer.get_config(), goes_on(model)

    return train


@pytest.mark.slow
@every_trained
def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(name, interrupted):
    folder, config, expected = interrupted(name)
    harness.start_over()
    loaded = keras.saving.load_model(folder / "model.keras")
    assert loaded.optimizer.get_config() == config
    harness.assert_same_outcome(goes_on(loaded), expected, tolerance=1e-6)


@pytest.mark.slow
@every_trained
def test_a_checkpoint_goes_on_as_if_there_had_been_none(name, interrupted):
    folder, _, expected = interrupted(name)
    model = compiled(name)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(folder / "checkpoint-1").assert_existing_objects_matched()
    harness.assert_same_outcome(goes_on(model), expected, tolerance=1e-6)


ANOTHER_PROCESS = """
import sys
import keras, numpy as np
import tfdp.optimizers
data, *folders = sys.argv[1:]
data = np.load(data)
for folder in folders:
    model = keras.saving.load_model(f"{folder}/model.keras")
    model.fit(data["x"], data["y"], batch_size=7, shuffle=False, verbose=0)
    np.savez(f"{folder}/weights.npz", *model.get_weights())
"""


@pytest.mark.exhaustive("test_a_saved_model_goes_on_as_if_it_had_not_been_saved")
@pytest.mark.multiprocess
def test_another_process_goes_on_as_if_it_were_the_same(tmp_path, interrupted):
    x, y = harness.regression_data()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    folders = [str(interrupted(name)[0]) for name in TRAINED]
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path / "data.npz"), *folders]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for folder, name in zip(folders, TRAINED, strict=True):
        found = list(np.load(f"{folder}/weights.npz").values())
        expected = interrupted(name)[2].weights
        harness.assert_close_arrays(found, expected, 1e-6, f"weights of {name}")
