"""The outputs of `predict`: those of the replicas, joined along the axis of the examples."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter.step import current
from tfdp.keras_adapter.training.sharing import sharing
from tfdp.keras_adapter.variables.statistics import average_written
from tfdp.replicas import Cut, FullCut, rows_of


class Predicting:
    """A stand-in for the model, whose `predict_step` returns the outputs of one replica's share.

    Keras makes the function for `predict` of it, and keeps it here; every other attribute is the
    model's. Only the step is replaced, since the code around it differs between versions of Keras.

    Args:
      model: The model whose function for `predict` is made.
    """

    def __init__(self, model: keras.Model) -> None:
        self.predict_function: Any = None
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict_step(self, data: Any) -> Any:
        """Returns the outputs of the model's step for the rows of a `Cut`; no rows for a stand-in.

        Args:
          data: A `Cut`, or a share whose place in the batch is not known.

        Raises:
          ValueError: The first axis of an output is not that of the examples. Joined along that
            axis, a scalar, a kernel, a time-major output or one with two rows an example would have
            another shape or order than on one device.
        """
        step = current()
        if not isinstance(data, Cut) or step is None:
            return self._checked(data)
        with sharing(step, data) as (rows, _):
            outputs = self._checked(rows)
            average_written(step)
        if isinstance(data, FullCut):
            return outputs
        has_examples = data.place[1] > 0
        return tf.nest.map_structure(lambda leaf: _rows_if(has_examples, leaf), outputs)

    def _checked(self, data: Any) -> Any:
        outputs = self._model.predict_step(data)
        step = current()
        if step is None or step.num_replicas == 1:
            return outputs
        leaves = tf.nest.flatten(outputs)
        inputs = [leaf for leaf in tf.nest.flatten(data) if _rank(leaf)]
        if not inputs:
            return outputs  # the elements of the data are no batches
        declared = _declared(self._model, leaves)
        joined = [
            _with_rows(leaf, inputs[0], declared[index], index) for index, leaf in enumerate(leaves)
        ]
        return tf.nest.pack_sequence_as(outputs, joined)


def _rows_if(has_examples: tf.Tensor, leaf: Any) -> Any:
    """Returns all rows of an output, or none if the replica has no examples."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf[: tf.where(has_examples, leaf.nrows(), 0)]
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf
    return leaf[: tf.where(has_examples, tf.shape(leaf, tf.int64)[0], 0)]


def _with_rows(output: Any, batch: Any, varies: bool, index: int) -> Any:
    """Returns `output` if it has a row for each example of the share; checks it if need be.

    Raises:
      ValueError: It has another number of rows.
    """
    rows, examples = (leaf.shape[0] if _rank(leaf) else -1 for leaf in (output, batch))
    # A fixed length is no number of examples if the share's length is not fixed, even if the two
    # happen to be equal.
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
    """Returns for each output whether the model's graph of layers leaves its first axis open."""
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
