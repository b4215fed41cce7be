"""The proof that an optimizer is elementwise, or updates each variable apart from the others."""

import keras
import pytest
from keras import ops, optimizers

import tfdp
from tfdp.keras_adapter.gradients.elementwise import NotProven, is_elementwise

AXES = [(1, 0), (2, 0), (2, 1)]


class Normed(optimizers.SGD):
    """Its step has the length of the rate."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / ops.norm(gradient), variable, learning_rate)


class Counting(optimizers.SGD):
    """Its rate falls with each variable that it updates."""

    def build(self, variables):
        super().build(variables)
        self.count = self.add_variable((), name="count")

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(self.count, 1.0)
        super().update_step(gradient, variable, learning_rate / self.count)


class Uncopied(optimizers.SGD):
    """Its constructor does not take what its configuration holds."""

    def __init__(self, rate):
        super().__init__(rate)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: optimizers.Adam(amsgrad=True, gradient_accumulation_steps=2, use_ema=True), True),
        (lambda: optimizers.Nadam(), True),
        (lambda: optimizers.Adafactor(), False),
        (lambda: tfdp.optimizers.LARS(0.5), False),
        (Normed, False),
    ],
    ids=["Adam", "Nadam", "Adafactor", "LARS", "a norm of a user's own"],
)
def test_elementwise_is_what_updates_a_slice_as_the_slice_of_its_update(make, expected):
    assert is_elementwise(make(), AXES) is expected


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Counting, "depends on the other variables"),
        (lambda: Uncopied(0.1), "does not copy it, but raises TypeError"),
    ],
    ids=["state of all variables", "no copy"],
)
def test_what_cannot_update_variables_apart_says_why(make, reason):
    with pytest.raises(NotProven, match=reason):
        is_elementwise(make(), AXES)


def test_the_optimizer_is_left_as_it_is():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = optimizers.Adam(schedule)
    assert is_elementwise(optimizer, AXES)
    assert not optimizer.built
    assert optimizer.get_config()["learning_rate"]["class_name"] == "ExponentialDecay"
