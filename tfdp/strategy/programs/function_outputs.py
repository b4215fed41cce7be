"""The outputs of a traced function, in its structure, not recorded by tapes."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.strategy._tensorflow_programs import could_possibly_record, stop_recording


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
        is_flat = type(structure) is dict and all(
            isinstance(value, tf.Tensor) for value in structure.values()
        )
        self._names = list(structure) if is_flat else None

    def packed(self, values: Sequence[Any]) -> Any:
        """Returns what the function does, given the value of each tensor, in order."""
        if self._names is not None:
            found = dict(zip(sorted(self._names), values, strict=True))
            return {name: found[name] for name in self._names}
        given = iter(values)
        flat = [next(given) if is_tensor else leaf for leaf, is_tensor in self._leaves]
        return tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)


def unrecorded(
    run: Callable[[], list[Any]], inputs: Callable[[], Sequence[tf.Tensor]]
) -> list[Any]:
    """Returns the outputs of a function that tapes outside do not record.

    Args:
      run: The function.
      inputs: Returns, after it, what a gradient could be asked for: see `without_gradient`.
    """
    if not could_possibly_record():
        return run()
    with stop_recording():
        outputs = run()
    return without_gradient(inputs(), outputs)


def without_gradient(inputs: Sequence[tf.Tensor], outputs: Sequence[Any]) -> list[Any]:
    """Returns a function's outputs; a tape that goes back through them is told why it cannot.

    Args:
      inputs: What a gradient could be asked for: arguments, and the values of variables.
      outputs: Tensors, and other values, which stay as they are.
    """

    @tf.custom_gradient
    def passed(*tensors: tf.Tensor) -> Any:
        return [tf.identity(tensor) for tensor in tensors[len(inputs) :]], _refused

    tensors = [output for output in outputs if tf.is_tensor(output)]
    marked = iter(passed(*inputs, *tensors) if tensors else ())
    return [next(marked) if tf.is_tensor(output) else output for output in outputs]


def marked(output: tf.Tensor) -> tf.Tensor:
    """Returns an output in a graph, of which a later gradient is told why it cannot be taken.

    No tape needs to record when the graph is made: one may when it is called.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"Identity": _REFUSED}):
        return tf.identity(output)


_REFUSED = "TfdpPartitionedOutput"


@tf.RegisterGradient(_REFUSED)
def _refused(*_: Any) -> Any:
    raise GradientError(
        "A gradient must be taken inside of a partitioned function, where it is that of the "
        "whole batch, but a tape outside goes back through one. Move the tape, and the call of "
        "its `gradient`, into the function."
    )
