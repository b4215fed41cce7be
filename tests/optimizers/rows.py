"""One row for each class of `tfdp.optimizers`: every argument at another value than its default."""

import inspect

import keras

from tfdp import optimizers


def keras_arguments():
    """Those of every Keras optimizer, and their defaults."""
    found = inspect.signature(keras.optimizers.Adam).parameters
    own = {"learning_rate", "beta_1", "beta_2", "epsilon", "amsgrad", "kwargs"}
    return {name: found[name].default for name in found.keys() - own}


def schedule():
    """A schedule within a schedule."""
    return optimizers.Warmup(optimizers.PolynomialDecay(0.5, 40, power=1.0), 4)


# Those of every Keras optimizer.
_SHARED = {
    "clipnorm": 2.5,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 7,
    "loss_scale_factor": 4.0,
    "gradient_accumulation_steps": 2,
}
_LAYERWISE = {
    "exclude_from_weight_decay": ["kernel$"],
    "exclude_from_layer_adaptation": [],
    "weight_norm_bounds": (0.5, 8.0),
    "trust_ratio_bounds": (0.0, float("inf")),
    **_SHARED,
}

ROWS = {
    "LARS": lambda: {
        "learning_rate": schedule(),
        "momentum": 0.5,
        "nesterov": True,
        "trust_coefficient": 0.25,
        "weight_decay": 0.125,
        "name": "mine",
        **_LAYERWISE,
    },
    "LAMB": lambda: {
        "learning_rate": schedule(),
        "beta_1": 0.75,
        "beta_2": 0.875,
        "epsilon": 0.5,
        "weight_decay": 0.125,
        "bias_correction": False,
        "name": "mine",
        **_LAYERWISE,
    },
    "PolynomialDecay": lambda: {
        "learning_rate": 0.25,
        "training_steps": 50,
        "warmup_steps": 8,
        "power": 3.0,
        "end_learning_rate": 0.125,
        "name": "mine",
    },
    "Warmup": lambda: {
        "after": keras.optimizers.schedules.CosineDecay(0.5, 100),
        "warmup_steps": 16,
        "initial_learning_rate": 0.125,
        "name": "mine",
    },
}

# As training uses them: the rates move a small model in a few steps.
OPTIMIZERS = {
    "LARS": lambda rate=0.5, **options: optimizers.LARS(
        rate, **{"trust_coefficient": 0.125, "weight_decay": 0.125, **options}
    ),
    "LAMB": lambda rate=0.0625, **options: optimizers.LAMB(
        rate, **{"weight_decay": 0.125, **options}
    ),
}


def make(name):
    """The row's object."""
    return getattr(optimizers, name)(**ROWS[name]())
