"""The arguments of calls of programs: what may be given, and what of it a program depends on."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.strategy.programs.arguments import Arguments


@dataclasses.dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a batch's tensor that this process has, by the rule of `tfdp.base.sharding`.

    Attributes:
      data: The rows.
      size: The number of rows of the whole tensor.
    """

    data: tf.Tensor
    size: int

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the rows."""
        return self.data.shape


# What arguments have that are no tensors, and are known in later calls: see `arguments`.
PARTS: Mapping[type, Callable[[Any], Any]] = {OwnRows: lambda rows: (rows.size, rows.data)}


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Returns the arguments of a call.

    Raises:
      TypeError: There are resources, or tensors that are not dense.
    """
    for leaf in tf.nest.flatten((args, kwargs)):
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.TypeSpec)) or _is_of_host(leaf):
            spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
            raise TypeError(
                "A program of XLAStrategy must be given dense tensors, but received "
                f"{spec}. {_to_numbers(spec)}"
            )
    return Arguments(args, kwargs)


def _to_numbers(spec: tf.TypeSpec) -> str:
    if not isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return "In place of an iterator give `next(iterator)`."
    dense = (
        "tf.sparse.to_dense(x)"
        if isinstance(spec, tf.SparseTensorSpec)
        else "x.to_tensor(shape=[None, 128])"
    )
    return f"Make it dense in the input pipeline: `dataset.map(lambda x: {dense})`."


def _is_of_host(leaf: Any) -> bool:
    """Returns whether an argument is a resource such as an iterator."""
    if isinstance(leaf, tf.Variable):
        return False  # its value is given
    parts = tf.nest.flatten(leaf, expand_composites=True)
    return any(tf.is_tensor(part) and part.dtype in (tf.resource, tf.variant) for part in parts)


def placeholder(leaf: Any) -> Any:
    """Returns a tensor without a value in place of a tensor, an array or a specification."""
    if tf.is_tensor(leaf) or isinstance(leaf, (np.ndarray, np.generic)):
        leaf = tf.TensorSpec(leaf.shape, leaf.dtype)
    if not isinstance(leaf, tf.TensorSpec):
        return leaf
    if not leaf.shape.is_fully_defined():
        raise ValueError(
            f"A program of XLAStrategy must be compiled for known sizes, but received {leaf}. Give "
            "all; `dataset.batch(size, drop_remainder=True)` has them in its `element_spec`."
        )
    return tf.compat.v1.placeholder(leaf.dtype, leaf.shape)


def rows_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the whole batch's length, None if the arguments are whole, and the arguments."""
    leaves = tf.nest.flatten((args, kwargs))
    sizes = {leaf.size for leaf in leaves if isinstance(leaf, OwnRows)}
    if not sizes:
        return None, (args, kwargs)
    whole = [leaf for leaf in leaves if not isinstance(leaf, OwnRows)]
    if len(sizes) > 1 or any(len(getattr(leaf, "shape", ())) for leaf in whole):
        raise TypeError(
            "A step that is given a batch of a `tfdp.data.pipeline`, of which each process has its "
            "own rows, must be given no other tensor with rows, but was. Make it a part of the "
            "pipeline's elements."
        )
    return sizes.pop(), tf.nest.map_structure(
        lambda leaf: leaf.data if isinstance(leaf, OwnRows) else leaf, (args, kwargs)
    )


def of_whole(spec: tf.TensorSpec, size: int | None) -> tf.TensorSpec:
    """Returns the specification of a whole argument; this process may have some rows of it."""
    if size is None or not spec.shape.rank:
        return spec
    return tf.TensorSpec([size, *spec.shape[1:]], spec.dtype)
