"""Optimizers, schedules and scaling rules for large batches.

>>> import keras
>>> from tfdp import optimizers
>>> rate = optimizers.scale_learning_rate(1e-3, base_batch=64, batch=4096, rule="sqrt")
>>> schedule = optimizers.PolynomialDecay(rate, training_steps=1000, warmup_steps=100, power=1.0)
>>> optimizer = optimizers.LAMB(schedule, weight_decay=0.01, global_clipnorm=1.0)
"""

from tfdp.base.exclusions import BIAS_AND_NORMALIZATION
from tfdp.optimizers.lamb import LAMB
from tfdp.optimizers.lars import LARS
from tfdp.optimizers.learning_rate_scaling import scale_learning_rate
from tfdp.optimizers.schedules import PolynomialDecay, Warmup

__all__ = [
    "BIAS_AND_NORMALIZATION",
    "LAMB",
    "LARS",
    "PolynomialDecay",
    "Warmup",
    "scale_learning_rate",
]
