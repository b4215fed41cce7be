"""The learning-rate schedules of large-batch training.

Their steps are Keras' own, the calls of the optimizer. With `gradient_accumulation_steps=k` these
are micro-batches, k to an update.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from tfdp.optimizers import argument_checks


@keras.saving.register_keras_serializable(package="tfdp")
class Warmup(LearningRateSchedule):
    """A schedule that rises linearly to another one, then follows it.

    At step t < w the rate is i + (p - i) · t / w, where i is the `initial_learning_rate`, w the
    `warmup_steps`, and p the first rate of `after`; from step w on it is that of `after` at t - w.

    Args:
      after: A rate, at least 0, or any Keras schedule, whose steps are counted from the end of the
        warm-up.
      warmup_steps: The number w of steps, at least 0.
      initial_learning_rate: The rate i at step 0, at least 0.

    Raises:
      ValueError: A number is out of range, or `after` ends before the warm-up that leads to it.

    Source: Goyal et al.: Accurate, Large Minibatch SGD, 2017, arXiv:1706.02677, section 2.2.

    >>> import keras
    >>> decay = keras.optimizers.schedules.CosineDecay(0.4, decay_steps=100)
    >>> schedule = Warmup(decay, warmup_steps=10)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.2, 0.4, 0.2, 0.0]
    """

    def __init__(
        self,
        after: float | LearningRateSchedule,
        warmup_steps: int,
        initial_learning_rate: float = 0.0,
        name: str = "Warmup",
    ) -> None:
        if not isinstance(after, LearningRateSchedule):
            argument_checks.at_least("after", after, 0, "Use after=0.1, or a schedule of Keras.")
        self.after = after
        self.warmup_steps = argument_checks.whole(
            "warmup_steps", warmup_steps, 0, "Use warmup_steps=500, counted in micro-batches."
        )
        self.initial_learning_rate = argument_checks.at_least(
            "initial_learning_rate", initial_learning_rate, 0, "Use initial_learning_rate=0.0."
        )
        self.name = name
        length = _length(after)
        if length is not None and self.warmup_steps > length:
            raise ValueError(
                "A warm-up must not be longer than the training that it leads to, but received "
                f"warmup_steps={self.warmup_steps} before a {type(after).__name__} that ends after "
                f"{length} steps. Use warmup_steps={length // 10}, or a longer schedule."
            )

    def __call__(self, step: Any) -> Any:
        """Returns the rate at a step: a float32 scalar."""
        return _after_warmup(self.after, step, self.warmup_steps, self.initial_learning_rate)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in types that JSON can hold."""
        after = self.after
        return {
            "after": float(after)
            if not isinstance(after, LearningRateSchedule)
            else keras.optimizers.schedules.serialize(after),
            "warmup_steps": self.warmup_steps,
            "initial_learning_rate": float(self.initial_learning_rate),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Warmup:
        """Returns the schedule that `get_config` describes."""
        after = config["after"]
        if isinstance(after, dict):
            after = keras.optimizers.schedules.deserialize(after)
        return cls(**{**config, "after": after})


@keras.saving.register_keras_serializable(package="tfdp")
class PolynomialDecay(LearningRateSchedule):
    """A linear warm-up, then a polynomial decay to the end of training: the rate of LARS and LAMB.

    At step t of T `training_steps`, of which w are `warmup_steps`, the rate is p · t / w for t < w,
    then e + (p - e) · (1 - (t - w) / (T - w))^power, and e after T. This is `Warmup` before
    `keras.optimizers.schedules.PolynomialDecay`, but `training_steps` includes the warm-up.

    Args:
      learning_rate: The highest rate p, at least 0.
      training_steps: The number T of steps, at least 1, the warm-up included; with
        `gradient_accumulation_steps=k` k times the updates.
      warmup_steps: The number w of steps of the warm-up, at least 0 and below T.
      power: The exponent: 2 for LARS (arXiv:1708.03888, Algorithm 1), 1 for LAMB (arXiv:1904.00962,
        section 4.1).
      end_learning_rate: The rate e, at least 0.

    Raises:
      ValueError: A number is out of range, or the warm-up is not shorter than training.

    >>> schedule = PolynomialDecay(8.0, training_steps=100, warmup_steps=20)
    >>> [float(schedule(step)) for step in (0, 10, 20, 60, 100, 120)]
    [0.0, 4.0, 8.0, 2.0, 0.0, 0.0]
    """

    def __init__(
        self,
        learning_rate: float,
        training_steps: int,
        *,
        warmup_steps: int = 0,
        power: float = 2.0,
        end_learning_rate: float = 0.0,
        name: str = "PolynomialDecay",
    ) -> None:
        self.learning_rate = argument_checks.at_least(
            "learning_rate", learning_rate, 0, "Use learning_rate=1.0."
        )
        self.training_steps = argument_checks.whole(
            "training_steps", training_steps, 1, "Use training_steps=epochs * steps_per_epoch."
        )
        self.warmup_steps = argument_checks.whole(
            "warmup_steps", warmup_steps, 0, "Use warmup_steps=0."
        )
        self.power = argument_checks.above(
            "power", power, 0, "Use power=2.0 for LARS, power=1.0 for LAMB."
        )
        self.end_learning_rate = argument_checks.at_least(
            "end_learning_rate", end_learning_rate, 0, "Use end_learning_rate=0.0."
        )
        self.name = name
        if self.warmup_steps >= self.training_steps:
            raise ValueError(
                "The warm-up must be shorter than training, but received "
                f"warmup_steps={self.warmup_steps} of training_steps={self.training_steps}. "
                f"Use warmup_steps={self.training_steps // 10}."
            )
        self._decay = keras.optimizers.schedules.PolynomialDecay(
            float(learning_rate),
            self.training_steps - self.warmup_steps,
            float(end_learning_rate),
            float(power),
        )

    def __call__(self, step: Any) -> Any:
        """Returns the rate at a step: a float32 scalar."""
        return _after_warmup(self._decay, step, self.warmup_steps, 0.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in types that JSON can hold."""
        return {
            "learning_rate": float(self.learning_rate),
            "training_steps": self.training_steps,
            "warmup_steps": self.warmup_steps,
            "power": self.power,
            "end_learning_rate": float(self.end_learning_rate),
            "name": self.name,
        }


def _after_warmup(after: Any, step: Any, warmup_steps: int, initial: float) -> Any:
    """Returns the rate at a step, where `after` follows a linear warm-up: a float32 scalar."""

    def rate_after(step: Any) -> Any:
        rate = after(step) if isinstance(after, LearningRateSchedule) else float(after)
        return ops.cast(rate, "float32")

    step = ops.cast(step, "float32")
    rate = rate_after(ops.maximum(step - warmup_steps, 0.0))
    if not warmup_steps:
        return rate
    rise = (rate_after(ops.zeros_like(step)) - initial) * (step / warmup_steps)
    return ops.where(step < warmup_steps, initial + rise, rate)


def _length(schedule: Any) -> int | None:
    """Returns the number of steps after which a schedule is at its end; None if it has no end."""
    module = keras.optimizers.schedules
    if isinstance(schedule, PolynomialDecay):
        return schedule.training_steps
    if isinstance(schedule, module.CosineDecay):
        return schedule.decay_steps + (schedule.warmup_steps or 0)
    if isinstance(schedule, module.PolynomialDecay) and not schedule.cycle:
        return schedule.decay_steps
    return None
