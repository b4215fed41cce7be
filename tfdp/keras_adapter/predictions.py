"""What `predict` gives: the replicas' outputs, joined along the axis of the examples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import replaced
from tfdp.keras_adapter.cut import rows_of
from tfdp.keras_adapter.step import Step, current


def of_examples(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Within it Keras makes a function for `predict` that refuses outputs of another first axis.

    Such an output, a scalar or a kernel, time-major or of two rows an example, would come out in
    another shape or order than from one device.
    """

    def checked(original: Callable[..., Any], step_function: Callable[..., Any]) -> Any:
        """An output that cannot be joined along the examples is refused."""
        return original(_checked(model, step_function))

    return replaced(model, "_autoconvert_optionals", checked)


def _checked(model: keras.Model, step_function: Callable[..., Any]) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def run(data: Any) -> Any:
        outputs = step_function(data)
        step = current()
        if step is None or step.num_replicas == 1:
            return outputs
        leaves = tf.nest.flatten(outputs)
        inputs = [leaf for leaf in tf.nest.flatten(data) if _rank(leaf)]
        if not inputs:
            return outputs  # of elements that are no batches
        declared = _declared(model, leaves)
        joined = [
            _with_rows(step, leaf, inputs[0], declared[index], index)
            for index, leaf in enumerate(leaves)
        ]
        return tf.nest.pack_sequence_as(outputs, joined)

    return run


def _with_rows(step: Step, output: Any, batch: Any, varies: bool, index: int) -> Any:
    """`output`, if it has a row for each of the share's examples."""
    rows, examples = (leaf.shape[0] if _rank(leaf) else -1 for leaf in (output, batch))
    # A length that is fixed where the share's is not is no number of examples, even where it fits.
    fits = rows == examples if rows is not None else True
    if not (varies and fits):
        raise ValueError(_refusal(index, output.shape, examples))
    if rows is not None:
        return output
    check = tf.debugging.assert_equal(
        rows_of(output), rows_of(batch), _refusal(index, output.shape, examples)
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.nest.map_structure(tf.identity, output, expand_composites=True)


def _declared(model: keras.Model, leaves: list[Any]) -> list[bool]:
    """Of each output, whether the model's graph of layers leaves its first axis open."""
    own_step = type(model).predict_step is keras.Model.predict_step
    outputs = tf.nest.flatten(getattr(model, "outputs", None) or []) if own_step else []
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or [])
    fixed = any(len(each.shape) and each.shape[0] is not None for each in inputs)
    if len(outputs) != len(leaves) or fixed:
        return [True] * len(leaves)
    return [bool(len(each.shape)) and each.shape[0] is None for each in outputs]


def _refusal(index: int, shape: Any, examples: int | None) -> str:
    share = "a share of any number of" if examples is None else f"{examples}"
    return (
        "Under several replicas the first axis of what `predict` gives must be that of the "
        f"examples, along which the replicas' outputs are joined, but output {index} has the shape "
        f"{shape} for {share} examples. Let the model give a row for each example: keras.ops."
        "moveaxis brings another axis to the front, and several rows of one example go on a second "
        "axis. What is no example's, read from the model, or from one built outside the scope."
    )


def _rank(leaf: Any) -> int:
    shape = getattr(leaf, "shape", None)
    return 0 if shape is None else (1 if shape.rank is None else shape.rank)
