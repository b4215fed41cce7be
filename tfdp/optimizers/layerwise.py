"""The base of the layer-wise optimizers: exclusions, decay in the update, float32 slots."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base import exclusions, recording
from tfdp.optimizers import argument_checks
from tfdp.optimizers.trust_ratio import Bounds

_HALF = ("float16", "bfloat16")


class AbstractLayerwiseOptimizer(keras.optimizers.Optimizer):
    """An abstract Keras optimizer with a trust ratio for each variable.

    Weight decay is part of the update that the ratio scales. Keras would apply the decay before the
    update, outside of the ratio; this is switched off here.

    Args:
      learning_rate: The learning rate; the subclasses describe this and all other arguments.
      weight_decay: The decay, λ or β in the papers; None or 0 for none.
      exclude_from_weight_decay: Patterns of paths; None for biases and normalization.
      exclude_from_layer_adaptation: Patterns of paths; None for biases and normalization.
      weight_norm_bounds: The bounds of φ(‖w‖).
      trust_ratio_bounds: The bounds of the ratio.
      **kwargs: The arguments of every Keras optimizer.

    Raises:
      ValueError: A number is out of range, or a pattern is no regular expression; when built, a
        pattern is found in no variable's path.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float | None,
        exclude_from_weight_decay: Sequence[str] | None,
        exclude_from_layer_adaptation: Sequence[str] | None,
        weight_norm_bounds: Bounds,
        trust_ratio_bounds: Bounds,
        **kwargs: Any,
    ) -> None:
        if not callable(learning_rate):
            learning_rate = argument_checks.at_least(  # as a float: Keras takes no int
                "learning_rate", learning_rate, 0, "Use learning_rate=0.001, or a schedule."
            )
        if weight_decay is not None:
            weight_decay = argument_checks.at_least(
                "weight_decay", weight_decay, 0, "Use weight_decay=0.01, or None."
            )
        patterns_by_option = {
            name: exclusions.checked(name, patterns)
            for name, patterns in (
                ("exclude_from_weight_decay", exclude_from_weight_decay),
                ("exclude_from_layer_adaptation", exclude_from_layer_adaptation),
            )
        }
        norm_bounds = argument_checks.bounds("weight_norm_bounds", weight_norm_bounds)
        ratio_bounds = argument_checks.bounds("trust_ratio_bounds", trust_ratio_bounds)
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)
        # Keras has a method named `exclude_from_weight_decay`, which works here as well.
        self.exclusions = patterns_by_option
        self.weight_norm_bounds = norm_bounds
        self.trust_ratio_bounds = ratio_bounds
        self._float32_slots = False
        self._is_loaded = False

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the optimizer of a configuration; a pattern found in no path gives a warning."""
        self = super().from_config(config, custom_objects)
        self._is_loaded = True
        return self

    @property
    def exclude_from_layer_adaptation(self) -> list[str] | None:
        """The patterns, or None for biases and normalization.

        >>> from tfdp.optimizers import LAMB
        >>> LAMB(exclude_from_layer_adaptation=["embeddings$"]).exclude_from_layer_adaptation
        ['embeddings$']
        """
        patterns = self.exclusions["exclude_from_layer_adaptation"]
        return None if patterns is None else list(patterns)

    def build(self, variables: Sequence[Any]) -> None:
        """Determines which variables decay, and which are adapted.

        Raises:
          TypeError: A variable is complex, for which neither LARS nor LAMB is defined.
        """
        if self.built:
            return
        for variable in variables:
            if tf.as_dtype(variable.dtype).is_complex:
                raise TypeError(
                    f"{type(self).__name__} must be given real variables, but "
                    f"{variable.path!r} is of {tf.as_dtype(variable.dtype).name}. Use a "
                    "`keras.optimizers.MultiOptimizer` with SGD for complex ones, or weights of "
                    "real and imaginary parts."
                )
        left_out = {
            name: exclusions.excluded(name, patterns, variables, lenient=self._is_loaded)
            for name, patterns in self.exclusions.items()
        }
        super().build(variables)
        self._decays = [not out for out in left_out["exclude_from_weight_decay"]]
        self._adapted = [not out for out in left_out["exclude_from_layer_adaptation"]]

    def step_options(self, index: int) -> dict[str, Any]:
        """Returns the options of a step of the variable `index`: decay, adaptation and bounds.

        They include the observer of its trust ratio, if the step is recorded. The variable does not
        decay if a pattern, or Keras' own method, excludes it.

        >>> from tfdp.optimizers import LARS
        >>> optimizer = LARS(weight_decay=1e-4)
        >>> optimizer.build([keras.Variable([1.0, 2.0], name="kernel")])
        >>> options = optimizer.step_options(0)
        >>> options["weight_decay"], options["adapted"]
        (0.0001, True)
        """
        # Tested by the name that it was built with: within a step "bias" may be "bias/replica_1:0".
        variable = self._trainable_variables[index]
        decays = self._decays[index] and self._use_weight_decay(variable)
        return {
            "weight_decay": float(self.weight_decay or 0.0) if decays else 0.0,
            "adapted": self._adapted[index],
            "weight_norm_bounds": self.weight_norm_bounds,
            "trust_ratio_bounds": self.trust_ratio_bounds,
            "observe": recording.trust_ratio_observer(index),
        }

    def add_slots(self, variables: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], ...]:
        """Adds for each variable a slot of zeros per name, in float32 where the variable is half.

        >>> from tfdp.optimizers import LARS
        >>> optimizer, kernel = LARS(), keras.Variable([1.0, 2.0], dtype="float16", name="kernel")
        >>> optimizer.build([kernel])
        >>> ((slot,),) = optimizer.add_slots([kernel], ["another"])
        >>> slot.shape.as_list(), slot.dtype
        ([2], 'float32')
        """
        with self._in_float32():
            return self.add_optimizer_variables(variables, list(names))

    def add_variable(
        self, shape: Any, initializer: Any = "zeros", dtype: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Adds a variable as Keras does; of slots, float32 ones in place of half precision."""
        if self._float32_slots and keras.backend.standardize_dtype(dtype) in _HALF:
            dtype = "float32"
        return super().add_variable(shape, initializer, dtype, *args, **kwargs)

    def in_float32(self, tensor: Any) -> tf.Tensor:
        """Returns a gradient or weight as a dense tensor, in float32 where it is half precision.

        Rows that occur more than once in `tf.IndexedSlices`, whose `dense_shape` must be known, are
        added up.

        >>> from tfdp.optimizers import LARS
        >>> half = tf.constant([1.0, 1.0], tf.float16)
        >>> rows = tf.IndexedSlices(half, indices=[1, 1], dense_shape=[3])
        >>> LARS().in_float32(rows).numpy()
        array([0., 2., 0.], dtype=float32)
        """
        tensor = tf.convert_to_tensor(tensor)
        return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in types that JSON can hold."""
        patterns = {
            name: None if patterns is None else list(patterns)
            for name, patterns in self.exclusions.items()
        }
        bounds = {
            name: None if pair is None else list(pair)
            for name, pair in (
                ("weight_norm_bounds", self.weight_norm_bounds),
                ("trust_ratio_bounds", self.trust_ratio_bounds),
            )
        }
        return {**super().get_config(), **patterns, **bounds}

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: the update contains the decay, within the ratio."""

    @contextlib.contextmanager
    def _in_float32(self) -> Iterator[None]:
        self._float32_slots = True
        try:
            yield
        finally:
            self._float32_slots = False
