"""LAMB: layer-wise adaptive moments for large batches."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.optimizers import argument_checks
from tfdp.optimizers.layerwise import AbstractLayerwiseOptimizer
from tfdp.optimizers.trust_ratio import Bounds, norm, trust_ratio


def bias_correction(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Returns 1 - decay**step, by which a moving average that started at zero is divided.

    The result is exact to the last bits at step 1, too, where float32's 1 - 0.999 loses four
    digits.

    Args:
      decay: The decay β, in [0, 1).
      step: A floating scalar, 1 at the first step.

    >>> round(float(bias_correction(0.999, tf.constant(1.0))), 9)
    0.001
    """
    if decay == 0:
        return tf.ones_like(step)
    return -tf.math.expm1(step * math.log(decay))


def lamb_step(
    gradient: tf.Tensor,
    weight: tf.Tensor,
    momentum: tf.Tensor,
    velocity: tf.Tensor,
    step: tf.Tensor,
    learning_rate: tf.Tensor | float,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    corrected: bool,
    adapted: bool,
    weight_norm_bounds: Bounds = None,
    trust_ratio_bounds: Bounds = None,
    observe: Callable[[tf.Tensor], None] | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns one step of one variable by Algorithm 2 of arXiv:1904.00962, with its symbols.

    1. m ← β₁·m + (1 - β₁)·g and v ← β₂·v + (1 - β₂)·g².
    2. m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), if `corrected`.
    3. r = m̂ / (√v̂ + ε), Adam's direction; u = r + λ·x.
    4. x ← x - η · φ(‖x‖) / ‖u‖ · u; without the ratio if the variable is not `adapted`.

    Args:
      gradient: The gradient g, of the weight's shape and dtype.
      weight: The weight x.
      momentum: The average m.
      velocity: The average v.
      step: The step t, a floating scalar, 1 at the first step.
      learning_rate: The rate η, a scalar.
      beta_1: The decay β₁ of m.
      beta_2: The decay β₂ of v.
      epsilon: The constant ε.
      weight_decay: The decay λ of the weight.
      corrected: Whether the averages' bias is corrected.
      adapted: Whether the variable has a trust ratio.
      weight_norm_bounds: The bounds of φ.
      trust_ratio_bounds: The bounds of the ratio.
      observe: Called with the ratio, a scalar, if the variable is `adapted`.

    Returns:
      The update to subtract from the weight, the new momentum and the new velocity.

    >>> g, x, zero = tf.constant([0.5, -2.0]), tf.constant([3.0, 4.0]), tf.zeros(2)
    >>> options = dict(beta_1=0.9, beta_2=0.999, epsilon=0.0, corrected=True, adapted=True)
    >>> update, *_ = lamb_step(g, x, zero, zero, tf.constant(1.0), 0.1, weight_decay=0.0, **options)
    >>> [round(float(u), 4) for u in update]  # 0.1 · 5 / √2 in each direction
    [0.3536, -0.3536]
    """
    momentum += (gradient - momentum) * (1 - beta_1)
    velocity += (tf.square(gradient) - velocity) * (1 - beta_2)
    numerator, denominator = momentum, tf.sqrt(velocity)
    if corrected:
        # Corrects by scalars where possible: m̂ / (√v̂ + ε) takes one pass more than m / (√v + ε).
        numerator *= 1 / bias_correction(beta_1, step)
        denominator *= tf.math.rsqrt(bias_correction(beta_2, step))
    update = numerator / (denominator + epsilon)
    if weight_decay:
        update += weight_decay * weight
    rate = tf.cast(learning_rate, weight.dtype)
    if adapted:
        ratio = trust_ratio(
            norm(weight),
            norm(update),
            weight_norm_bounds=weight_norm_bounds,
            ratio_bounds=trust_ratio_bounds,
        )
        rate *= ratio
        if observe is not None:
            observe(ratio)
    return rate * update, momentum, velocity


@keras.saving.register_keras_serializable(package="tfdp")
class LAMB(AbstractLayerwiseOptimizer):
    """An optimizer: Adam's direction with decay, as long as a fraction of each layer's norm.

    `keras.optimizers.Lamb` leaves weight decay out of the ratio: it shrinks the weights first, by
    learning rate times decay, and scales Adam's direction alone. In the paper, and here, the decay
    is part of the vector whose norm is taken, and is scaled with it. Without decay, and with
    nothing excluded, both optimizers take the same steps.

    Variables that `exclude_from_layer_adaptation` names take Adam's step.

    Cost: two slots of the variable's size; the weight is read twice more and the update three times
    more than by Adam.

    Deviations from the paper: the ratio is 1 where φ(‖x‖) or ‖u‖ is zero.

    Args:
      learning_rate: The rate η: at least 0, a Keras schedule, or a callable without arguments.
      beta_1: The decay β₁ of the average of gradients, in [0, 1).
      beta_2: The decay β₂ of the average of squared gradients, in [0, 1).
      epsilon: The constant ε, above 0.
      weight_decay: The decay λ, at least 0, within the ratio; None or 0 for none.
      bias_correction: Whether the averages are divided by 1 - βᵗ; t counts updates, not
        micro-batches.
      exclude_from_weight_decay: Regular expressions, searched for in the paths of variables, such
        as "dense_1/kernel"; None for `BIAS_AND_NORMALIZATION`, [] to exclude nothing. Do not use
        the model's name: it begins the paths of some models, but of no model that was loaded.
      exclude_from_layer_adaptation: Patterns of the same form as `exclude_from_weight_decay`.
      weight_norm_bounds: (γ_l, γ_u) of φ(z) = min(max(z, γ_l), γ_u); None for φ(z) = z.
      trust_ratio_bounds: The interval (low, high) to which the ratio is clipped; None for none.
      **kwargs: The arguments of every Keras optimizer: `clipnorm`, `global_clipnorm`, `clipvalue`,
        `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
        `gradient_accumulation_steps`, `name`.

    Raises:
      ValueError: A number is out of its range, or a pattern is no regular expression; when built, a
        pattern is found in no variable's path.

    Source: You et al.: Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, arXiv:1904.00962, Algorithm 2.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    >>> model.compile(LAMB(2e-3, weight_decay=0.01, gradient_accumulation_steps=4), "mse")

    The default exclusions, and one more:

    >>> from tfdp import optimizers
    >>> patterns = [*optimizers.BIAS_AND_NORMALIZATION, "embeddings$"]
    >>> optimizer = LAMB(exclude_from_weight_decay=patterns)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.01,
        bias_correction: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        weight_norm_bounds: Bounds = None,
        trust_ratio_bounds: Bounds = None,
        name: str = "lamb",
        **kwargs: Any,
    ) -> None:
        beta_1 = argument_checks.fraction("beta_1", beta_1, "Use beta_1=0.9.")
        beta_2 = argument_checks.fraction("beta_2", beta_2, "Use beta_2=0.999.")
        epsilon = argument_checks.above("epsilon", epsilon, 0, "Use epsilon=1e-6.")
        super().__init__(
            learning_rate,
            weight_decay,
            exclude_from_weight_decay,
            exclude_from_layer_adaptation,
            weight_norm_bounds,
            trust_ratio_bounds,
            name=name,
            **kwargs,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction

    def build(self, variables: Sequence[Any]) -> None:
        """Makes two slots for each variable: `momentum` and `velocity`."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_slots(variables, ["momentum", "velocity"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its slots."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        weight = self.in_float32(variable)
        update, new_momentum, new_velocity = lamb_step(
            self.in_float32(gradient),
            weight,
            tf.convert_to_tensor(momentum),
            tf.convert_to_tensor(velocity),
            tf.cast(self.iterations + 1, weight.dtype),
            learning_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            corrected=self.bias_correction,
            **self.step_options(index),
        )
        self.assign(momentum, new_momentum)
        self.assign(velocity, new_velocity)
        self.assign_sub(variable, update)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in types that JSON can hold."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
        }
