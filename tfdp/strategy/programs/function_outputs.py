"""What a traced function returns: its structure, and the values of a call in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class FunctionOutputs:
    """The outputs of a traced function.

    Args:
      structure: What it returns, with a tensor where a call gives one.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        leaves = tf.nest.flatten(structure, expand_composites=True)
        self._leaves = [(leaf, tf.is_tensor(leaf)) for leaf in leaves]
        # Logs of a step are packed in each: at once.
        is_flat = type(structure) is dict and all(map(tf.is_tensor, structure.values()))
        self._names = list(structure) if is_flat else None

    def packed(self, values: Sequence[Any]) -> Any:
        """Returns what the function does, given the value of each tensor, in order."""
        if self._names is not None:
            found = dict(zip(sorted(self._names), values, strict=True))
            return {name: found[name] for name in self._names}
        given = iter(values)
        flat = [next(given) if is_tensor else leaf for leaf, is_tensor in self._leaves]
        return tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)
