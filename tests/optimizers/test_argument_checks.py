"""Every number that cannot be right is refused where it is given, by a message that mends it."""

import math
import re
from fractions import Fraction

import keras
import numpy as np
import pytest

from tfdp.optimizers import (
    LAMB,
    LARS,
    PolynomialDecay,
    Warmup,
    argument_checks,
    scale_learning_rate,
)

INF, NAN = math.inf, math.nan

RATE = "Use learning_rate=0.001, or a schedule."
DECAY = "Use weight_decay=0.01, or None."

# What is called, with what, and how the message begins and ends.
OF_BOTH = [
    ({"learning_rate": -0.1}, "`learning_rate` must be at least 0, but received -0.1.", RATE),
    ({"learning_rate": NAN}, "`learning_rate` must be a finite number, but received nan.", RATE),
    ({"learning_rate": INF}, "`learning_rate` must be a finite number, but received inf.", RATE),
    ({"learning_rate": True}, "`learning_rate` must be a finite number, but received True.", RATE),
    ({"learning_rate": "1"}, "`learning_rate` must be a finite number, but received '1'.", RATE),
    ({"learning_rate": None}, "`learning_rate` must be a finite number, but received None.", RATE),
    ({"learning_rate": 1j}, "`learning_rate` must be a finite number, but received 1j.", RATE),
    ({"weight_decay": -1e-4}, "`weight_decay` must be at least 0, but received -0.0001.", DECAY),
    ({"weight_decay": NAN}, "`weight_decay` must be a finite number, but received nan.", DECAY),
    ({"weight_decay": False}, "`weight_decay` must be a finite number, but received False.", DECAY),
    ({"weight_decay": "0"}, "`weight_decay` must be a finite number, but received '0'.", DECAY),
]
OF_ONE = [
    *[
        (LARS, {"momentum": value}, message, "Use momentum=0.9.")
        for value, message in (
            (1.0, "`momentum` must be in [0, 1), but received 1.0."),
            (-0.1, "`momentum` must be in [0, 1), but received -0.1."),
            (NAN, "`momentum` must be a finite number, but received nan."),
            (None, "`momentum` must be a finite number, but received None."),
        )
    ],
    (
        LARS,
        {"nesterov": True, "momentum": 0},
        "Nesterov's momentum needs one above 0, but received momentum=0 with nesterov=True.",
        "Use momentum=0.9, or nesterov=False.",
    ),
    *[
        (LARS, {"trust_coefficient": value}, message, "Use trust_coefficient=0.001.")
        for value, message in (
            (0, "`trust_coefficient` must be above 0, but received 0."),
            (-1.0, "`trust_coefficient` must be above 0, but received -1.0."),
            (INF, "`trust_coefficient` must be a finite number, but received inf."),
        )
    ],
    (LAMB, {"beta_1": 1}, "`beta_1` must be in [0, 1), but received 1.", "Use beta_1=0.9."),
    (LAMB, {"beta_1": "0.9"}, "`beta_1` must be a finite number", "Use beta_1=0.9."),
    (LAMB, {"beta_2": 1.5}, "`beta_2` must be in [0, 1), but received 1.5.", "Use beta_2=0.999."),
    (LAMB, {"beta_2": -0.5}, "`beta_2` must be in [0, 1), but received -0.5.", "Use beta_2=0.999."),
    (
        LAMB,
        {"epsilon": -1e-6},
        "`epsilon` must be above 0, but received -1e-06.",
        "epsilon=1e-6.",
    ),
    (LAMB, {"epsilon": NAN}, "`epsilon` must be a finite number", "Use epsilon=1e-6."),
]
BOUNDS = [(2.0, 1.0), (-1.0, 1.0), (NAN, 1.0), (0.0, NAN), (1.0,), (1.0, 2.0, 3.0), 4.0, "ab", []]

SCHEDULED = [
    *[
        (lambda value=value: PolynomialDecay(value, 10), message, "Use learning_rate=1.0.")
        for value, message in (
            (-1.0, "`learning_rate` must be at least 0, but received -1.0."),
            (NAN, "`learning_rate` must be a finite number, but received nan."),
            ("1", "`learning_rate` must be a finite number, but received '1'."),
        )
    ],
    *[
        (
            lambda value=value: PolynomialDecay(1.0, value),
            message,
            "Use training_steps=epochs * steps_per_epoch.",
        )
        for value, message in (
            (0, "`training_steps` must be at least 1, but received 0."),
            (10.5, "`training_steps` must be a whole number, but received 10.5."),
            (None, "`training_steps` must be a finite number, but received None."),
        )
    ],
    (
        lambda: PolynomialDecay(1.0, 10, warmup_steps=-1),
        "`warmup_steps` must be at least 0, but received -1.",
        "Use warmup_steps=0.",
    ),
    (
        lambda: PolynomialDecay(1.0, 10, power=0),
        "`power` must be above 0, but received 0.",
        "Use power=2.0 for LARS, power=1.0 for LAMB.",
    ),
    (
        lambda: PolynomialDecay(1.0, 10, end_learning_rate=-1),
        "`end_learning_rate` must be at least 0, but received -1.",
        "Use end_learning_rate=0.0.",
    ),
    *[
        (
            lambda steps=steps: PolynomialDecay(1.0, 200, warmup_steps=steps),
            "The warm-up must be shorter than training, but received "
            f"warmup_steps={steps} of training_steps=200.",
            "Use warmup_steps=20.",
        )
        for steps in (200, 300)
    ],
    (
        lambda: Warmup(-1.0, 10),
        "`after` must be at least 0, but received -1.0.",
        "Use after=0.1, or a schedule of Keras.",
    ),
    (
        lambda: Warmup("cosine", 10),
        "`after` must be a finite number, but received 'cosine'.",
        "Use after=0.1, or a schedule of Keras.",
    ),
    (
        lambda: Warmup(1.0, 2.5),
        "`warmup_steps` must be a whole number, but received 2.5.",
        "Use warmup_steps=500, counted in micro-batches.",
    ),
    (
        lambda: Warmup(1.0, 10, -0.5),
        "`initial_learning_rate` must be at least 0, but received -0.5.",
        "Use initial_learning_rate=0.0.",
    ),
    *[
        (
            lambda after=after: Warmup(after, 101),
            "A warm-up must not be longer than the training that it leads to, but received "
            f"warmup_steps=101 before a {type(after).__name__} that ends after 100 steps.",
            "Use warmup_steps=10, or a longer schedule.",
        )
        for after in (
            PolynomialDecay(1.0, 100),
            keras.optimizers.schedules.PolynomialDecay(1.0, 100),
            keras.optimizers.schedules.CosineDecay(1.0, 100),
            keras.optimizers.schedules.CosineDecay(0.0, 80, warmup_target=1.0, warmup_steps=20),
        )
    ],
]
SCALED = [
    (
        (-0.1, 1, 2),
        "`base` must be at least 0, but received -0.1.",
        "Use the rate that was tuned, such as base=0.1.",
    ),
    ((NAN, 1, 2), "`base` must be a finite number, but received nan.", "such as base=0.1."),
    ((0.1, 0, 2), "`base_batch` must be at least 1, but received 0.", "Use base_batch=256."),
    ((0.1, 1, 0), "`batch` must be at least 1, but received 0.", "Use batch=1024."),
    ((0.1, 1, 1.5), "`batch` must be a whole number, but received 1.5.", "Use batch=1024."),
    ((0.1, 1, "2"), "`batch` must be a finite number, but received '2'.", "Use batch=1024."),
    ((0.1, True, 2), "`base_batch` must be a finite number, but received True.", "base_batch=256."),
    *[
        (
            (0.1, 1, 2, rule),
            f"`rule` must be one of 'linear', 'sqrt', but received {rule!r}.",
            'Use rule="linear" for SGD, rule="sqrt" for Adam and LAMB.',
        )
        for rule in ("cubic", None, ["sqrt"])
    ],
]


def refuses(call, beginning, end):
    with pytest.raises(ValueError, match=re.escape(beginning)) as error:
        call()
    message = str(error.value)
    assert message.startswith(beginning)
    assert message.endswith(end)


@pytest.mark.parametrize(("arguments", "beginning", "end"), OF_BOTH, ids=str)
@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_both_optimizers_refuse(optimizer, arguments, beginning, end):
    refuses(lambda: optimizer(**arguments), beginning, end)


@pytest.mark.parametrize(("optimizer", "arguments", "beginning", "end"), OF_ONE)
def test_one_optimizer_refuses(optimizer, arguments, beginning, end):
    refuses(lambda: optimizer(**arguments), beginning, end)


@pytest.mark.parametrize("pair", BOUNDS, ids=str)
@pytest.mark.parametrize("option", ["weight_norm_bounds", "trust_ratio_bounds"])
@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_bounds_are_a_pair_in_order(optimizer, option, pair):
    refuses(
        lambda: optimizer(**{option: pair}),
        f"`{option}` must be a pair (low, high) with 0 <= low <= high, but received {pair!r}.",
        f"Use {option}=(0.0, 10.0), or None for no bounds.",
    )


@pytest.mark.parametrize(("call", "beginning", "end"), SCHEDULED)
def test_a_schedule_refuses(call, beginning, end):
    refuses(call, beginning, end)


@pytest.mark.parametrize(("arguments", "beginning", "end"), SCALED, ids=str)
def test_a_rule_refuses(arguments, beginning, end):
    refuses(lambda: scale_learning_rate(*arguments), beginning, end)


def test_a_schedule_without_an_end_takes_a_warmup_of_any_length():
    schedules = keras.optimizers.schedules
    for after in (
        0.5,
        schedules.ExponentialDecay(0.5, 10, 0.5),
        schedules.PolynomialDecay(0.5, 10, cycle=True),
        schedules.CosineDecayRestarts(0.5, 10),
    ):
        assert Warmup(after, 10_000).warmup_steps == 10_000
    assert Warmup(schedules.CosineDecay(0.5, 100), 100).warmup_steps == 100


@pytest.mark.parametrize("number", [1, 1.5, np.float32(0.5), np.int64(3), Fraction(1, 4)])
def test_every_real_number_becomes_a_float(number):
    assert type(argument_checks.real("x", number, "")) is float
    assert argument_checks.real("x", number, "") == number


def test_edges_belong_to_a_range_or_do_not():
    assert argument_checks.at_least("x", 0, 0, "") == 0
    assert argument_checks.fraction("x", 0, "") == 0
    assert argument_checks.fraction("x", 1 - 2**-53, "") < 1
    assert argument_checks.above("x", 5e-324, 0, "") > 0
    assert argument_checks.bounds("x", (0, 0)) == (0.0, 0.0)
    assert argument_checks.bounds("x", [1, INF]) == (1.0, INF)
    assert argument_checks.bounds("x", None) is None


@pytest.mark.parametrize("value", [7, 7.0, np.int32(7), np.float32(7.0), Fraction(14, 2)])
def test_a_whole_number_of_any_kind_becomes_an_int(value):
    assert type(argument_checks.whole("x", value, 7, "")) is int
    assert argument_checks.whole("x", value, 7, "") == 7


def test_a_whole_number_is_not_rounded():
    assert argument_checks.whole("x", 2**53 + 1, 1, "") == 2**53 + 1
