"""LARS: layer-wise adaptive rate scaling for momentum SGD."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.optimizers import argument_checks
from tfdp.optimizers.layerwise import AbstractLayerwiseOptimizer
from tfdp.optimizers.trust_ratio import Bounds, norm, trust_ratio


def lars_step(
    gradient: tf.Tensor,
    weight: tf.Tensor,
    velocity: tf.Tensor,
    learning_rate: tf.Tensor | float,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    trust_coefficient: float,
    adapted: bool,
    weight_norm_bounds: Bounds = None,
    trust_ratio_bounds: Bounds = None,
    observe: Callable[[tf.Tensor], None] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns one step of one variable by Algorithm 1 of arXiv:1708.03888, with its symbols.

    1. λ = η · φ(‖w‖) / (‖g‖ + β‖w‖), the local rate; 1 if the variable is not `adapted`.
    2. v ← m·v + γ·λ·(g + β·w).
    3. w ← w - v; with Nesterov's momentum w ← w - (m·v + γ·λ·(g + β·w)).

    Args:
      gradient: The gradient g, of the weight's shape and dtype.
      weight: The weight w.
      velocity: The velocity v.
      learning_rate: The global rate γ, a scalar.
      momentum: The momentum m.
      nesterov: Whether the step looks ahead.
      weight_decay: The decay β.
      trust_coefficient: The coefficient η.
      adapted: Whether the variable has a local rate.
      weight_norm_bounds: The bounds of φ.
      trust_ratio_bounds: The bounds of λ.
      observe: Called with the ratio, a scalar, if the variable is `adapted`.

    Returns:
      The update to subtract from the weight, and the new velocity.

    >>> g, w, v = tf.constant([0.0, 4.0]), tf.constant([3.0, 0.0]), tf.zeros(2)
    >>> options = dict(momentum=0.9, nesterov=False, trust_coefficient=0.1, adapted=True)
    >>> update, velocity = lars_step(g, w, v, 1.0, weight_decay=0.0, **options)
    >>> [round(float(u), 3) for u in update]
    [0.0, 0.3]
    """
    rate = tf.cast(learning_rate, weight.dtype)
    if adapted:
        weight_norm = norm(weight)
        ratio = trust_ratio(
            weight_norm,
            norm(gradient) + weight_decay * weight_norm,
            trust_coefficient,
            weight_norm_bounds=weight_norm_bounds,
            ratio_bounds=trust_ratio_bounds,
        )
        rate *= ratio
        if observe is not None:
            observe(ratio)
    decayed = gradient + weight_decay * weight if weight_decay else gradient
    step = rate * decayed
    velocity = momentum * velocity + step if momentum else step
    return (momentum * velocity + step if nesterov else velocity), velocity


@keras.saving.register_keras_serializable(package="tfdp")
class LARS(AbstractLayerwiseOptimizer):
    """An optimizer by momentum SGD whose steps are a fraction of each layer's norm.

    The learning rate is dimensionless: with η = 0.001 and a rate of 1 every layer moves by at most
    a thousandth of its norm in a step, before momentum. So it is far larger than SGD's: rates of 1
    to 30 are common at large batches, with a warm-up and a polynomial decay
    (:class:`tfdp.optimizers.PolynomialDecay`).

    Variables that `exclude_from_layer_adaptation` names are trained by plain momentum SGD with
    the same learning rate, as in the authors' code.

    Cost: one slot of the variable's size; weight and gradient are read twice more than by momentum
    SGD.

    Deviations from the paper: λ is 1 where φ(‖w‖) or its denominator is zero. Keras' options
    apply to the gradient that comes in (clipping) or the weights that go out (EMA).

    Args:
      learning_rate: The global rate γ: at least 0, a Keras schedule, or a callable without
        arguments.
      momentum: The momentum m, in [0, 1).
      nesterov: Whether to use Nesterov's momentum.
      trust_coefficient: The coefficient η, above 0.
      weight_decay: The decay β, at least 0, within the local rate; None or 0 for none.
      exclude_from_weight_decay: Regular expressions, searched for in the paths of variables, such
        as "dense_1/kernel"; None for `BIAS_AND_NORMALIZATION`, [] to exclude nothing. Do not use
        the model's name: it begins the paths of some models, but of no model that was loaded.
      exclude_from_layer_adaptation: Patterns of the same form as `exclude_from_weight_decay`.
      weight_norm_bounds: The interval (low, high) to which ‖w‖ is clipped in the local rate; None
        for none.
      trust_ratio_bounds: The interval (low, high) to which λ is clipped; None for none.
      **kwargs: The arguments of every Keras optimizer: `clipnorm`, `global_clipnorm`, `clipvalue`,
        `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
        `gradient_accumulation_steps`, `name`.

    Raises:
      ValueError: A number is out of its range, or a pattern is no regular expression; when built, a
        pattern is found in no variable's path.

    Source: You, Gitman, Ginsburg: Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888, Algorithm 1 with η as in equation 6.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    >>> model.compile(LARS(2.0, momentum=0.9, weight_decay=1e-4), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
        weight_decay: float | None = 0.0005,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        weight_norm_bounds: Bounds = None,
        trust_ratio_bounds: Bounds = None,
        name: str = "lars",
        **kwargs: Any,
    ) -> None:
        momentum = argument_checks.fraction("momentum", momentum, "Use momentum=0.9.")
        trust_coefficient = argument_checks.above(
            "trust_coefficient", trust_coefficient, 0, "Use trust_coefficient=0.001."
        )
        if nesterov and not momentum:
            raise ValueError(
                "Nesterov's momentum needs one above 0, but received momentum=0 with "
                "nesterov=True. Use momentum=0.9, or nesterov=False."
            )
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
        self.momentum = momentum
        self.nesterov = nesterov
        self.trust_coefficient = trust_coefficient

    def build(self, variables: Sequence[Any]) -> None:
        """Makes one slot for each variable: `velocity`."""
        if self.built:
            return
        super().build(variables)
        (self._velocities,) = self.add_slots(variables, ["velocity"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its slot."""
        index = self._get_variable_index(variable)
        velocity = self._velocities[index]
        update, new_velocity = lars_step(
            self.in_float32(gradient),
            self.in_float32(variable),
            tf.convert_to_tensor(velocity),
            learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            trust_coefficient=self.trust_coefficient,
            **self.step_options(index),
        )
        self.assign(velocity, new_velocity)
        self.assign_sub(variable, update)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in types that JSON can hold."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "trust_coefficient": self.trust_coefficient,
        }
