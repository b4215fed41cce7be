"""The arguments of a partitioned call: which leaves are sharded, and which shapes traces know.

Arguments that are tensors alone have a fast path: a key tells them from others in a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import batch_fingerprints
from tfdp.strategy._tensorflow import DistributedValues, tf_convert
from tfdp.strategy._tensorflow_programs import ControlStatusCtx, EagerTensor, Status, shape_of
from tfdp.strategy.programs.argument_sharding import ArgumentSharding, Irregular
from tfdp.strategy.programs.uneven_batches import RowCounts


class Arguments:
    """The arguments of one call.

    Args:
      args: The arguments.
      kwargs: Those by name.
      even_over: The number of replicas, if each of them has as many rows where tracing knows how
        many; 0: nothing is known.

    Attributes:
      parts: For each tensor the tensor, or the parts of the local replicas.
      shapes: The shapes of the whole tensors, as far as they are known.
    """

    def __init__(self, args: Any, kwargs: Any, even_over: int = 0) -> None:
        given = tf.nest.map_structure(_in_parts, (args, kwargs))
        self._given = given
        flat = tf.nest.flatten(given, expand_composites=True)
        self._structure = tf.nest.map_structure(_of_any_length, given)
        self._fixed: list[Any] = []  # of each leaf that is no tensor its value
        self.parts: list[list[tf.Tensor]] = []
        self._in_parts: list[bool] = []
        self._irregular: list[Irregular] = []
        for leaf in flat:
            if isinstance(leaf, _Parts) and leaf.are_irregular:
                depth = getattr(leaf.values[0], "ragged_rank", 0)
                self._irregular.append(Irregular(len(self.parts), depth))
                flattened = [tf.nest.flatten(each, expand_composites=True) for each in leaf.values]
                components = list(map(list, zip(*flattened, strict=True)))
                self.parts += components
                self._in_parts += [True] * len(components)
                self._fixed += [_TENSOR] * len(components)
                continue
            if isinstance(leaf, _Parts):
                self.parts.append([tf.convert_to_tensor(part) for part in leaf.values])
                self._in_parts.append(True)
            elif _is_tensor(leaf):
                self.parts.append([tf.convert_to_tensor(leaf)])
                self._in_parts.append(False)
            else:
                self._fixed.append(leaf)
                continue
            self._fixed.append(_TENSOR)
        # The shapes of sparse tensors, of which a replica's has as many numbers as the whole one's.
        self._sizes = {each.sharded.stop for each in self._irregular if not each.depth}
        self._regular = self._sharding([None] * len(self.parts), True).are_regular
        self.shapes = [
            _whole_shape(parts, even_over if is_regular else 0)
            if in_parts and index not in self._sizes
            else parts[0].shape
            for index, (parts, in_parts, is_regular) in enumerate(
                zip(self.parts, self._in_parts, self._regular, strict=True)
            )
        ]

    @property
    def key(self) -> Any:
        """What a trace depends on besides sizes: the structure, kinds and Python's values."""
        kinds = tuple(
            (parts[0].dtype.name, shape.rank, is_regular)
            for parts, shape, is_regular in zip(self.parts, self.shapes, self._regular, strict=True)
        )
        values = tuple(value if value is _TENSOR else _hashable(value) for value in self._fixed)
        return repr(tf.nest.map_structure(_outline, self._structure)), values, kinds

    @property
    def lengths_are_known(self) -> bool:
        """Whether the lengths of all first axes are known."""
        return all(
            part.shape.rank is not None and None not in part.shape[:1]
            for parts in self.parts
            for part in parts
        )

    def names(self) -> list[str]:
        """Returns what the tensors among the arguments are called."""
        leaves = tf.nest.flatten(self._given)
        called = batch_fingerprints.names_of_arguments(*self._given)
        if len(called) != len(leaves):  # there are nests of which only TensorFlow knows
            called = [f"the arguments' leaf {index}" for index in range(len(leaves))]
        found = []
        for name, leaf in zip(called, leaves, strict=True):
            whole = leaf.values[0] if isinstance(leaf, _Parts) else leaf
            parts = tf.nest.flatten(whole, expand_composites=True)
            found += [name for part in parts if _is_tensor(part) or isinstance(leaf, _Parts)]
        return found

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function of the tensors among the arguments, which AutoGraph converts.

        An error's text shows the lines of what is converted: none of this module's.
        """
        structure, fixed = self._structure, self._fixed
        converted = tf_convert(function, ControlStatusCtx(Status.ENABLED))

        @tf.autograph.experimental.do_not_convert
        def of_tensors(*tensors: tf.Tensor) -> Any:
            given = iter(tensors)
            flat = [next(given) if value is _TENSOR else value for value in fixed]
            args, kwargs = tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
            return converted(*args, **kwargs)

        of_tensors.__name__ = getattr(function, "__name__", "function").strip("<>")
        return of_tensors

    def fixed(self) -> list[tf.TensorSpec]:
        """Returns specifications of these arguments alone."""
        return [
            tf.TensorSpec(shape, parts[0].dtype)
            for shape, parts in zip(self.shapes, self.parts, strict=True)
        ]

    def specs(self, before: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
        """Returns specifications of any length of the first axes.

        Args:
          before: Those of an earlier trace: sizes that differ from its are left open, too.
        """
        found = []
        for index, spec in enumerate(self.fixed()):
            sizes = spec.shape.as_list() if spec.shape.rank else []
            if sizes and index not in self._sizes:
                sizes[0] = None
            if before is not None and before[index].shape.rank == len(sizes):
                earlier = before[index].shape.as_list()
                sizes = [a if a == b else None for a, b in zip(sizes, earlier, strict=True)]
            known = spec.shape.rank is not None
            found.append(tf.TensorSpec(sizes if known else None, spec.dtype))
        return found

    def signed(self, signature: Sequence[Any]) -> list[tf.TensorSpec]:
        """Returns the specifications that a signature gives, in which these arguments must fit.

        Sizes that it declares and tracing does not know are checked when the program runs.
        """
        specs = tf.nest.flatten(signature, expand_composites=True)
        fits = len(specs) == len(self.parts) and all(
            spec.shape.is_compatible_with(shape) and spec.dtype == parts[0].dtype
            for spec, shape, parts in zip(specs, self.shapes, self.parts, strict=True)
        )
        if not fits:
            given = [
                f"{parts[0].dtype.name}{shape}"
                for shape, parts in zip(self.shapes, self.parts, strict=True)
            ]
            raise TypeError(
                f"The arguments must fit `input_signature`, {[str(s) for s in specs]}, but "
                f"received {given}. Give such tensors, or another signature."
            )
        for index, (spec, shape) in enumerate(zip(specs, self.shapes, strict=True)):
            if not shape.is_subtype_of(spec.shape):
                sizes = [None, *spec.shape[1:]] if self._in_parts[index] else spec.shape
                self.parts[index] = [
                    tf.ensure_shape(part, sizes, name="sizes_of_input_signature")
                    for part in self.parts[index]
                ]
                self.shapes[index] = spec.shape
        return specs

    def sharding(
        self, num_replicas: int, of_all: Callable[[_Lengths], _Lengths]
    ) -> ArgumentSharding:
        """Returns how the arguments are sharded: each by its first axis, equal lengths together.

        One replica takes all as it is: its program is the same for all lengths.

        Args:
          num_replicas: The number of replicas.
          of_all: Returns the lengths of all replicas' parts, given those of the local ones, of
            each argument in parts. Some processes' parts may have equal lengths alone.
        """
        numbers: dict[Any, int] = {}
        batches: list[int | None] = []
        given = list(zip(self.parts, self._in_parts, self._regular, strict=True))
        lengths_in_parts = iter(
            of_all(
                [
                    _lengths(parts)
                    for parts, in_parts, is_regular in given
                    if in_parts and is_regular and parts[0].shape.rank
                ]
            )
        )
        for parts, in_parts, is_regular in given:
            if not (is_regular and parts[0].shape.rank):
                batches.append(None)
                continue
            lengths = tuple(next(lengths_in_parts) if in_parts else _lengths(parts))
            batches.append(numbers.setdefault((in_parts, lengths), len(numbers)))
        whole = self.lengths_are_known and not any(self._in_parts)
        may_be_empty = not whole or any(
            parts[0].shape[0] < num_replicas
            for parts, number in zip(self.parts, batches, strict=True)
            if number is not None
        )
        if num_replicas == 1:
            return self._sharding(batches, may_be_empty=False).whole()
        return self._sharding(batches, may_be_empty)

    def sharding_of_shards(self, counts: RowCounts) -> ArgumentSharding:
        """Returns how the arguments are sharded that are the replicas' shares of batches."""
        batches = [
            0 if in_parts and parts[0].shape.rank != 0 else None
            for parts, in_parts in zip(self.parts, self._in_parts, strict=True)
        ]
        one = self._sharding(batches, not counts.all_have_some)._replace(of_shares=True)
        return one.by(counts.batches(len(one.heads)))

    def _sharding(self, batches: Sequence[int | None], may_be_empty: bool) -> ArgumentSharding:
        in_parts, irregular = tuple(self._in_parts), tuple(self._irregular)
        return ArgumentSharding(tuple(batches), in_parts, may_be_empty, irregular=irregular)

    def have_equal_lengths(self, sharding: ArgumentSharding) -> tf.Tensor:
        """Returns whether arguments that are taken for one batch have one length."""
        first: dict[int, tf.Tensor] = {}
        equal = []
        for parts, number in zip(self.parts, sharding.batches, strict=True):
            if number is None:
                continue
            length = tf.stack([tf.shape(part)[0] for part in parts])
            equal.append(tf.reduce_all(length == first.setdefault(number, length)))
        return tf.reduce_all(equal)


_TENSOR = object()

# Of each of several arguments those of its parts; None: tracing does not know one.
_Lengths: TypeAlias = list[list[int | None]]


class _Parts:
    """The parts of a tensor that the local replicas have; for nests one leaf."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    @property
    def are_irregular(self) -> bool:
        """Whether they are ragged or sparse."""
        return isinstance(self.values[0], (tf.RaggedTensor, tf.SparseTensor))


def _lengths(parts: Sequence[tf.Tensor]) -> list[int | None]:
    return [part.shape[0] for part in parts]


def _is_tensor(leaf: Any) -> bool:
    return tf.is_tensor(leaf) or isinstance(leaf, (np.ndarray, np.generic))


def _whole_shape(parts: Sequence[tf.Tensor], even_over: int) -> tf.TensorShape:
    """Returns the shape of what is given in parts, as far as tracing knows it of all of them."""
    shape = parts[0].shape.most_specific_common_supertype([part.shape for part in parts[1:]])
    if not shape.rank:
        return shape
    length = shape[0] * even_over if even_over and shape[0] is not None else None
    return tf.TensorShape([length, *shape[1:]])


def _outline(leaf: Any) -> Any:
    """Returns what tells a leaf's kind from others, but for the number of its rows."""
    if isinstance(leaf, tf.TypeSpec):
        return repr(leaf)
    parts = tf.nest.flatten(leaf, expand_composites=True)
    return 0 if len(parts) == 1 and parts[0] is leaf else repr(tf.type_spec_from_value(leaf))


def _of_any_length(leaf: Any) -> Any:
    """Returns of ragged and sparse tensors what they have in common with others of more rows."""
    if isinstance(leaf, _Parts):
        return _of_any_length(leaf.values[0]) if leaf.are_irregular else leaf
    if isinstance(leaf, tf.RaggedTensor):
        shape, splits = [None, *leaf.shape[1:]], leaf.row_splits.dtype
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, splits)
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return leaf


def _in_parts(leaf: Any) -> Any:
    if not isinstance(leaf, DistributedValues) or isinstance(leaf, tf.Variable):
        return leaf
    return _Parts(leaf.values)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


# Of other values a call looks at more than their type and what they are equal to.
_VALUES = (type(None), bool, int, float, str)


class Plain(NamedTuple):
    """The arguments of calls outside of graphs: nests of tensors, and values of Python's own.

    Attributes:
      key: What all that is made for them depends on: the nest, values, dtypes and shapes.
      tensors: The tensors, in the order of `tf.nest`.
    """

    key: Hashable
    tensors: Sequence[tf.Tensor]


def plain(nest: Any, parts_of: Mapping[type, Callable[[Any], Any]] | None = None) -> Plain | None:
    """Returns arguments if there are none of other kinds.

    Args:
      nest: The arguments.
      parts_of: For other types that may be in it a function that returns a nest of what one has.

    >>> one, two = plain((tf.ones([3]), 2)), plain((tf.zeros([3]), 2))
    >>> one.key == two.key, one.key == plain((tf.ones([3]), 2.0)).key
    (True, False)
    >>> plain((object(),))
    """
    tensors: list[tf.Tensor] = []
    key = _key(nest, tensors, parts_of or {})
    return None if key is None else Plain(key, tensors)


def _key(
    value: Any, tensors: list[tf.Tensor], parts_of: Mapping[type, Callable[[Any], Any]]
) -> Hashable | None:
    kind = type(value)
    if kind is EagerTensor:
        tensors.append(value)
        return value.dtype, shape_of(value)
    if kind in _VALUES:
        return kind, value
    if kind is dict:
        if not all(type(name) is str for name in value):
            return None
        found = [_key(value[name], tensors, parts_of) for name in sorted(value)]
        return None if None in found else (dict, *value, *found)
    if kind in (tuple, list):
        found = [_key(each, tensors, parts_of) for each in value]
        return None if None in found else (kind, *found)
    if kind in parts_of:
        parts = _key(parts_of[kind](value), tensors, parts_of)
        return None if parts is None else (kind, parts)
    return None
