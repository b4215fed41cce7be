"""The recipe of each optimizer: its learning rate's course, its constants, and what is tuned.

Every recipe warms up linearly over the first tenth of the training and then decays polynomially to
0. Keras calls a schedule with the number of micro-batches, so its steps are micro-batches.
"""

import dataclasses
from typing import Any

from benchmarks.convergence.tasks import OPTIMIZERS

# A part of a run's identity: raise it where the same options would train otherwise.
RECIPE_VERSION = 1

WARMUP_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The recipe of one optimizer, the same for every task and batch.

    Args:
      description: The constants in words.
      decay_power: The power of the polynomial after the warm-up.
      tuned_at_every_batch: Whether the learning rate is swept at every batch; otherwise only at the
        base batch, and scaled linearly from there.
    """

    description: str
    decay_power: float
    tuned_at_every_batch: bool = True


RECIPES = {
    # Goyal et al., 2017, arXiv:1706.02677.
    "sgd": Recipe("momentum 0.9, learning rate scaled linearly", 2.0, tuned_at_every_batch=False),
    # The fair baselines of Nado et al., 2021, arXiv:2102.06356: tuned at each batch.
    "nesterov": Recipe("Nesterov momentum 0.9", 2.0),
    "adam": Recipe("beta_1 0.9, beta_2 0.999, epsilon 1e-7", 1.0),
    # You et al., 2017, arXiv:1708.03888.
    "lars": Recipe("momentum 0.9, trust coefficient 0.02, weight decay 1e-4", 2.0),
    # You et al., 2020, arXiv:1904.00962.
    "lamb": Recipe("beta_1 0.9, beta_2 0.999, epsilon 1e-6, weight decay 0.01", 1.0),
}
assert RECIPES.keys() == set(OPTIMIZERS)


def make_optimizer(
    name: str,
    learning_rate: float,
    training_steps: int,
    gradient_accumulation_steps: int,
    momentum: float = 0.9,
) -> Any:
    """Returns the optimizer of a recipe.

    Args:
      name: One of `RECIPES`.
      learning_rate: The highest rate, at the end of the warm-up.
      training_steps: The micro-batches of the whole training.
      gradient_accumulation_steps: The micro-batches of one update.
      momentum: The momentum of SGD; 0 where a compression has it.
    """
    import keras

    import tfdp

    schedule = tfdp.optimizers.PolynomialDecay(
        learning_rate,
        training_steps,
        warmup_steps=round(training_steps * WARMUP_SHARE),
        power=RECIPES[name].decay_power,
    )
    # Keras does not accept 1.
    steps = gradient_accumulation_steps if gradient_accumulation_steps > 1 else None
    accumulate: dict[str, Any] = {"gradient_accumulation_steps": steps}
    match name:
        case "sgd":
            return keras.optimizers.SGD(schedule, momentum=momentum, **accumulate)
        case "nesterov":
            return keras.optimizers.SGD(schedule, momentum=momentum, nesterov=True, **accumulate)
        case "adam":
            return keras.optimizers.Adam(schedule, **accumulate)
        case "lars":
            # Biases, which are not adapted, take the rate as it is. So the rate must be one that
            # SGD bears, and the coefficient makes it large enough for the kernels.
            return tfdp.optimizers.LARS(
                schedule, trust_coefficient=0.02, weight_decay=1e-4, **accumulate
            )
        case "lamb":
            return tfdp.optimizers.LAMB(schedule, weight_decay=0.01, **accumulate)
    raise KeyError(name)
