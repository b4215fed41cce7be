"""The optimizers as the benchmark uses them."""

import keras
import pytest

from benchmarks.convergence.recipes import RECIPES, make_optimizer
from tfdp import optimizers

KINDS = {
    "sgd": keras.optimizers.SGD,
    "nesterov": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "lars": optimizers.LARS,
    "lamb": optimizers.LAMB,
}

every_recipe = pytest.mark.parametrize("name", RECIPES)


@every_recipe
def test_a_recipe_is_the_optimizer_that_it_names(name):
    made = make_optimizer(name, 0.5, training_steps=100, gradient_accumulation_steps=4)
    assert type(made) is KINDS[name]
    assert made.gradient_accumulation_steps == 4
    assert getattr(made, "nesterov", False) == (name == "nesterov")
    alone = make_optimizer(name, 0.5, training_steps=100, gradient_accumulation_steps=1)
    assert alone.gradient_accumulation_steps is None


@every_recipe
def test_the_rate_rises_for_a_tenth_of_the_micro_batches_and_decays_to_0(name):
    power = 1 if name in ("adam", "lamb") else 2
    made = make_optimizer(name, 0.5, training_steps=100, gradient_accumulation_steps=4)
    rates = {step: float(made._learning_rate(step)) for step in (0, 5, 10, 55, 100, 200)}
    assert rates == pytest.approx(
        {0: 0, 5: 0.25, 10: 0.5, 55: 0.5 * 0.5**power, 100: 0, 200: 0}, abs=1e-6
    )


def test_only_sgd_is_scaled_instead_of_tuned():
    assert [name for name, each in RECIPES.items() if not each.tuned_at_every_batch] == ["sgd"]


@pytest.mark.parametrize(("name", "decay"), [("lars", "1e-4"), ("lamb", "0.01")])
def test_the_stated_weight_decay_is_the_optimizer_s(name, decay):
    made = make_optimizer(name, 0.5, training_steps=100, gradient_accumulation_steps=1)
    assert made.weight_decay == float(decay)
    assert RECIPES[name].description.endswith(f"weight decay {decay}")
