"""Configurations, also of what has no `get_config`."""

import harness
import keras
import numpy as np
import pytest
from keras import optimizers

import tfdp
from tfdp.callbacks.manifest.configuration import configuration
from tfdp.keras.trainer import rank_agreement

pytestmark = harness.in_one_process


class Bare(optimizers.schedules.LearningRateSchedule):
    """A schedule as many programs write it, without `get_config`."""

    def __init__(self, peak, table=None, warmup=None):
        super().__init__()
        self.peak = peak
        self._table = table
        self.warmup = warmup

    def __call__(self, step):
        return self.peak


BARE = {
    "class_name": "Bare",
    "config": {
        "peak": 0.5,
        "table": None,
        "warmup": None,
        "incomplete": "`get_config` raised NotImplementedError",
    },
}


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: optimizers.SGD(rate, momentum=0.9, nesterov=True, clipnorm=1.0),
        lambda rate: optimizers.Adam(rate, beta_1=0.8, amsgrad=True),
        lambda rate: optimizers.AdamW(rate, weight_decay=0.25, use_ema=True),
        lambda rate: tfdp.optimizers.LAMB(rate, exclude_from_layer_adaptation=["bias"]),
        lambda rate: tfdp.optimizers.LARS(rate, trust_coefficient=0.1),
    ],
    ids=["SGD", "Adam", "AdamW", "LAMB", "LARS"],
)
def test_without_get_config_all_but_the_schedule_is_as_with_it(make):
    found = configuration(make(Bare(0.5)))
    assert found.pop("learning_rate") == BARE
    assert found.pop("incomplete") == "`get_config` raised NotImplementedError"
    usual = make(0.5).get_config()
    names = found.keys() & usual.keys() - {"name"}
    assert {name: found[name] for name in names} == {name: usual[name] for name in names}
    # A method of Keras has the last one's name.
    assert usual.keys() - found.keys() <= {"learning_rate", "exclude_from_weight_decay"}


def test_a_schedule_within_others_is_found():
    inner = optimizers.SGD(tfdp.optimizers.Warmup(Bare(0.5), 10), momentum=0.9)
    found = configuration(optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
    assert found["initial_scale"] == 8.0
    assert "learning_rate" not in found
    assert found["inner_optimizer"]["class_name"] == "SGD"
    assert found["inner_optimizer"]["config"]["momentum"] == 0.9
    warmup = found["inner_optimizer"]["config"]["learning_rate"]
    assert warmup["class_name"] == "Warmup"
    assert warmup["config"]["warmup_steps"] == 10
    assert warmup["config"]["after"] == BARE


def test_where_get_config_is_to_be_had_it_is_what_counts():
    optimizer = optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 100))
    assert configuration(optimizer) == optimizer.get_config()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.arange(3), [0, 1, 2]),
        (np.zeros([100, 100], "float32"), "float32 [100, 100]"),
        (keras.Variable(2.0), 2.0),
        ({"a": (1, None)}, {"a": [1, None]}),
        (harness.dense_model, "dense_model"),
        (object(), "object"),
    ],
    ids=["an array", "a large array", "a variable", "a dict", "a function", "an object"],
)
def test_what_a_schedule_holds_is_told_in_short(value, told):
    assert configuration(Bare(0.5, table=value))["table"] == told


def test_a_schedule_that_holds_itself_ends():
    schedule = Bare(0.5)
    schedule.warmup = schedule
    assert configuration(schedule)["warmup"]["config"]["peak"] == 0.5


def test_ranks_compare_what_can_be_had():
    def described(schedule):
        return rank_agreement.of_model(harness.dense_model(optimizers.SGD(schedule)))

    harness.start_over()
    first = described(Bare(0.5, warmup=object()))
    harness.start_over()
    assert described(Bare(0.5, warmup=object())) == first
    assert "'class_name': 'Bare'" in first["optimizer learning_rate"]
    assert first["optimizer momentum"] == "0.0"
    harness.start_over()
    other = described(Bare(0.25))
    assert {name for name in first if first[name] != other[name]} == {"optimizer learning_rate"}
