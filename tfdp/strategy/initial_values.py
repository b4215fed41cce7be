"""Initial values of variables: every process begins with those of rank 0."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.base import rank_comparison
from tfdp.communication.replicas import ProcessGroup
from tfdp.strategy._tensorflow import CheckpointInitialValue


def of_rank_0(
    processes: ProcessGroup, strategy: str, device: str, kwargs: Mapping[str, Any]
) -> tf.Tensor:
    """Returns the initial value that rank 0 has for a variable, and compares the declarations.

    Args:
      processes: All processes.
      strategy: The name of the strategy, alike on all ranks.
      device: The device on which the variable is made.
      kwargs: The arguments that the variable is made with.

    Raises:
      ValueError: The value is not known when the variable is made.
      RankMismatchError: The ranks declare different variables.
    """
    with tf.init_scope(), tf.device(device):
        value = kwargs["initial_value"]
        value = value() if callable(value) else value
        if isinstance(value, CheckpointInitialValue):
            value = value.wrapped_value
        if not tf.executing_eagerly() or (tf.is_tensor(value) and not hasattr(value, "numpy")):
            raise ValueError(
                "In a cluster a variable's initial value must be known when it is made, but "
                f"that of {kwargs.get('name')!r} is a tensor of a graph. Make the variable "
                "outside the tf.function, or pass a callable as `initial_value`."
            )
        value = tf.convert_to_tensor(value, kwargs.get("dtype"))
        own = _declared(kwargs, value)
        payload = tf.io.serialize_tensor(value).numpy() if processes.rank == 0 else b""
        first = processes.from_first(f"{strategy}: a new variable", own, payload)
        for option, expected in first.value.items():
            if option != "name" and own[option] != expected:
                error = rank_comparison.mismatch(
                    processes.said_by,
                    "every rank must make the same variables in the same order",
                    f"{option} of {own['name']!r} is {own[option]!r} here, and rank 0 has "
                    f"{expected!r} for {first.value['name']!r}",
                    "Build the same model on all ranks.",
                )
                processes.fail(error)
                raise error
        if processes.rank == 0:
            return value
        return tf.io.parse_tensor(first.payload, value.dtype)


def _declared(kwargs: Mapping[str, Any], initial_value: tf.Tensor) -> dict[str, object]:
    """Returns the properties of a new variable that must be alike on all ranks, as JSON."""
    return {
        "name": kwargs.get("name") or "Variable",
        "shape": initial_value.shape.as_list(),
        "dtype": initial_value.dtype.name,
        "trainable": kwargs.get("trainable"),
        "aggregation": str(kwargs.get("aggregation")),
    }
