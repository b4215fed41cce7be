"""`strategy.partitioned`: a function that is written for one device, run by all replicas."""

from __future__ import annotations

import contextlib
import functools
import random
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.partition import Explanation, Report, lines_named
from tfdp.replicas import one_device
from tfdp.strategy import graph_options
from tfdp.strategy._tensorflow import (
    DistributedValues,
    regroup,
)
from tfdp.strategy._tensorflow_programs import (
    could_possibly_record,
    stop_recording,
)
from tfdp.strategy.program_calls import ProgramCalls, ProgramOptions
from tfdp.strategy.traces import Cut, Trace

if TYPE_CHECKING:
    from tfdp.strategy.data_parallel import DataParallelStrategy


class Partitioned:
    """A function for one device that all replicas of a strategy run together.

    `tfdp.DataParallelStrategy.partitioned` makes it and says what it does.

    Args:
      strategy: The strategy.
      function: The function.
      input_signature: See `partitioned`.
      options: What its programs are asked for.

    Attributes:
      python_function: The function.
    """

    def __init__(
        self,
        strategy: DataParallelStrategy,
        function: Callable[..., Any],
        input_signature: Sequence[Any] | None,
        options: ProgramOptions,
    ) -> None:
        self._strategy, self.python_function = strategy, function
        self._signature = None if input_signature is None else tuple(input_signature)
        self._options = options
        self._traces: dict[Any, list[Trace]] = {}
        self._asks_for_sizes: set[Any] = set()
        self._methods: weakref.WeakKeyDictionary[Any, Partitioned] = weakref.WeakKeyDictionary()
        self._latest: ProgramCalls | None = None
        functools.update_wrapper(self, function)

    def __get__(self, owner: Any, kind: type | None = None) -> Partitioned:
        """Returns the method of an object, as a decorated function in a class is asked for."""
        if owner is None:
            return self
        if owner not in self._methods:
            function, reference = self.python_function, weakref.ref(owner)

            @functools.wraps(function)
            def method(*args: Any, **kwargs: Any) -> Any:
                return function(reference(), *args, **kwargs)

            self._methods[owner] = Partitioned(
                self._strategy, method, self._signature, self._options
            )
        return self._methods[owner]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on the whole batch, as its replicas' programs do together."""
        if one_device.is_traced():
            return self.python_function(*args, **kwargs)  # part of the program around it
        arguments = _Arguments(args, kwargs)
        if tf.executing_eagerly():
            # In a cluster what ended a collective is told by the rank that it began on.
            with self._strategy.extended.processes.explained():
                trace = self._trace(arguments)
                try:
                    return self._called(trace, arguments)
                except tf.errors.OpError as error:
                    lines = lines_named(trace.source.graph, error.message)
                    if not lines:
                        raise
                    said = f"{error.message}\nIn the program: {'; '.join(lines)}."
                    raise type(error)(error.node_def, error.op, said) from None
        return self._called(self._trace(arguments), arguments)

    def _called(self, trace: Trace, arguments: _Arguments, shares: _Shares | None = None) -> Any:
        if could_possibly_record():
            with stop_recording():
                outputs = self._run(trace, arguments, shares)
            tensors = [output for output in outputs if tf.is_tensor(output)]
            inputs = [part for parts in arguments.parts for part in parts] + trace.values()
            marked = iter(_without_gradient(inputs, tensors) if tensors else ())
            outputs = [next(marked) if tf.is_tensor(output) else output for output in outputs]
        else:
            outputs = self._run(trace, arguments, shares)
        structure, given = trace.source.structured_outputs, iter(outputs)
        leaves = tf.nest.flatten(structure, expand_composites=True)
        flat = [next(given) if tf.is_tensor(leaf) else leaf for leaf in leaves]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)

    @tf.autograph.experimental.do_not_convert
    def on_shares(self, length: tf.Tensor, all_have_some: bool, *args: Any) -> Any:
        """Runs the function on a batch, of which every process has its own replicas' shares.

        Args:
          length: The batch's length, a scalar, from which each share's follows.
          all_have_some: Whether every replica is known to have examples. One without has a row of
            another's in their place.
          *args: The arguments, with a `tf.distribute.DistributedValues` for each tensor.
        """
        arguments = _Arguments(args, {})
        trace = self._trace(arguments)
        return self._called(trace, arguments, _Shares(tf.cast(length, tf.int32), all_have_some))

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for calls of graphs that hold the function: optimized as it is."""
        devices = self._strategy.extended.worker_devices
        return graph_options.calling_with(graph_options.of_program(devices))

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Returns what a call with these arguments exchanges between replicas, and why.

        It is traced if it was not called so before, and not run. As a text it has 80 columns; see
        `tfdp.partition.Explanation`, which also writes itself into a log directory for
        `tfdp report`.

        >>> import tfdp
        >>> strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
        >>> mean = strategy.partitioned(lambda x: tf.reduce_mean(x))
        >>> found = mean.explain(tf.ones([8, 3]))
        >>> [(each.kind, each.size_bytes, each.bytes_sent) for each in found.collectives]
        [('sum', 4, 4)]
        """
        arguments = _Arguments(args, kwargs)
        cut = arguments.cut(self._strategy.extended.num_replicas)
        return self._trace(arguments).calls(cut).explain(arguments.shapes)

    def experimental_get_tracing_count(self) -> int:
        """Returns how often the function was traced, as a `tf.function` does."""
        return sum(map(len, self._traces.values()))

    def _trace(self, arguments: _Arguments) -> Trace:
        """Returns the trace that takes the arguments; the function is traced if there is none."""
        traces = self._traces.setdefault(arguments.key, [])
        for trace in traces:
            if trace.takes(arguments.shapes):
                return trace
        function = arguments.function(self.python_function)
        if self._signature is not None:
            specs = arguments.signed(self._signature)
            traces.append(Trace(self._strategy, function, specs, self._options))
            return traces[-1]
        specs, fixed = arguments.specs(traces[-1].specs if traces else None), arguments.fixed()
        if arguments.key in self._asks_for_sizes:
            specs = fixed
        drawn = random.getstate(), np.random.get_state()
        try:
            traces.append(Trace(self._strategy, function, specs, self._options))
        except (TypeError, ValueError, NotImplementedError, tf.errors.InvalidArgumentError):
            if fixed == specs:
                raise
            # The function asks Python for sizes: it is traced for these alone, as on one device.
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
            traces.append(Trace(self._strategy, function, fixed, self._options))
            self._asks_for_sizes.add(arguments.key)
        return traces[-1]

    def _run(self, trace: Trace, arguments: _Arguments, shares: _Shares | None) -> list[Any]:
        cut = arguments.cut(self._strategy.extended.num_replicas)
        if shares is not None:
            cut = arguments.cut_of_shares(shares)
        calls = trace.calls(cut)
        self._latest = calls
        if shares is not None:
            found = calls.run([shares.length], *arguments.parts)
        elif arguments.lengths_are_known:
            found = calls.run(*arguments.parts)
        elif cut.whole() == cut:
            fits = tf.debugging.Assert(
                arguments.have_equal_lengths(cut),
                [
                    "The replicas' parts of all arguments must have equal lengths in a graph. Call "
                    "the partitioned function outside of it, or give it whole batches."
                ],
            )
            with tf.control_dependencies([fits]):
                found = calls.run(*[list(map(tf.identity, parts)) for parts in arguments.parts])
        else:
            whole = trace.calls(cut.whole())
            found = tf.cond(
                arguments.have_equal_lengths(cut),
                lambda: calls.run(*arguments.parts),
                lambda: whole.run(*arguments.parts),
            )
        return [
            each[0] if len(each) == 1 else regroup(tuple(each), always_wrap=True) for each in found
        ]

    @property
    def report(self) -> Report:
        """The record of what the latest call's program exchanges."""
        assert self._latest is not None, "it was not called yet"
        return self._latest.program.report


class _Shares(NamedTuple):
    """What is known of the batch whose shares the arguments are: see `Partitioned.on_shares`."""

    length: tf.Tensor
    all_have_some: bool


class _Arguments:
    """The arguments of one call.

    Attributes:
      key: What a trace depends on besides shapes: the structure, dtypes and Python's values.
      parts: For each tensor the tensor, or the parts of the local replicas.
      shapes: The shapes of the whole tensors, as far as they are known.
      lengths_are_known: Whether the lengths of all first axes are.
    """

    def __init__(self, args: Any, kwargs: Any) -> None:
        given = tf.nest.map_structure(_in_parts, (args, kwargs))
        flat = tf.nest.flatten(given, expand_composites=True)
        self._structure = tf.nest.map_structure(_of_any_length, given)
        self._fixed: list[Any] = []  # of each leaf that is no tensor its value
        self.parts: list[list[tf.Tensor]] = []
        self._in_parts: list[bool] = []
        for leaf in flat:
            if isinstance(leaf, _Parts):
                self.parts.append([tf.convert_to_tensor(part) for part in leaf.values])
                self._in_parts.append(True)
            elif tf.is_tensor(leaf) or isinstance(leaf, (np.ndarray, np.generic)):
                self.parts.append([tf.convert_to_tensor(leaf)])
                self._in_parts.append(False)
            else:
                self._fixed.append(leaf)
                continue
            self._fixed.append(_TENSOR)
        self.shapes = [
            tf.TensorShape([None, *parts[0].shape[1:]]) if in_parts else parts[0].shape
            for parts, in_parts in zip(self.parts, self._in_parts, strict=True)
        ]
        kinds = tuple(
            (parts[0].dtype.name, parts[0].shape.rank, in_parts)
            for parts, in_parts in zip(self.parts, self._in_parts, strict=True)
        )
        values = tuple(value if value is _TENSOR else _hashable(value) for value in self._fixed)
        outline = tf.nest.map_structure(_outline, self._structure)
        self.key = (repr(outline), values, kinds)
        self.lengths_are_known = all(
            parts[0].shape.rank is not None and None not in parts[0].shape[:1]
            for parts in self.parts
        )

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function of the tensors among the arguments."""
        structure, fixed = self._structure, self._fixed

        def of_tensors(*tensors: tf.Tensor) -> Any:
            given = iter(tensors)
            flat = [next(given) if value is _TENSOR else value for value in fixed]
            args, kwargs = tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
            return function(*args, **kwargs)

        # AutoGraph would look for the source of a lambda.
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
            if sizes:
                sizes[0] = None
            if before is not None and before[index].shape.rank == len(sizes):
                earlier = before[index].shape.as_list()
                sizes = [a if a == b else None for a, b in zip(sizes, earlier, strict=True)]
            known = spec.shape.rank is not None
            found.append(tf.TensorSpec(sizes if known else None, spec.dtype))
        return found

    def signed(self, signature: Sequence[Any]) -> list[tf.TensorSpec]:
        """Returns the specifications that a signature gives, in which these arguments must fit."""
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
        return specs

    def cut(self, num_replicas: int) -> Cut:
        """Returns how the arguments are cut: each by its first axis, equal lengths together."""
        numbers: dict[Any, int] = {}
        batches: list[int | None] = []
        shortest: int | None = None
        for parts, in_parts in zip(self.parts, self._in_parts, strict=True):
            if not parts[0].shape.rank:
                batches.append(None)
                continue
            lengths = tuple(part.shape[0] for part in parts)
            batches.append(numbers.setdefault((in_parts, lengths), len(numbers)))
            if None not in lengths:
                least = min(lengths) * num_replicas if in_parts else lengths[0]
                shortest = least if shortest is None else min(shortest, least)
        whole = self.lengths_are_known and not any(self._in_parts)
        may_be_empty = not whole or (shortest is not None and shortest < num_replicas)
        return Cut(tuple(batches), tuple(self._in_parts), may_be_empty)

    def cut_of_shares(self, shares: _Shares) -> Cut:
        """Returns how the arguments are cut that are the replicas' shares of one batch."""
        batches = tuple(
            0 if in_parts and parts[0].shape.rank != 0 else None
            for parts, in_parts in zip(self.parts, self._in_parts, strict=True)
        )
        return Cut(batches, tuple(self._in_parts), not shares.all_have_some, of_shares=True)

    def have_equal_lengths(self, cut: Cut) -> tf.Tensor:
        """Returns whether arguments that are taken for one batch have one length."""
        first: dict[int, tf.Tensor] = {}
        equal = []
        for parts, number in zip(self.parts, cut.batches, strict=True):
            if number is None:
                continue
            length = tf.stack([tf.shape(part)[0] for part in parts])
            equal.append(tf.reduce_all(length == first.setdefault(number, length)))
        return tf.reduce_all(equal)


_TENSOR = object()


class _Parts:
    """The parts of a tensor that the local replicas have; for nests one leaf."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


def _outline(leaf: Any) -> Any:
    """Returns what tells a leaf's kind from others, but for the number of its rows."""
    if isinstance(leaf, tf.TypeSpec):
        return repr(leaf)
    parts = tf.nest.flatten(leaf, expand_composites=True)
    return 0 if len(parts) == 1 and parts[0] is leaf else repr(tf.type_spec_from_value(leaf))


def _of_any_length(leaf: Any) -> Any:
    """Returns of ragged and sparse tensors what they have in common with others of more rows."""
    if isinstance(leaf, tf.RaggedTensor):
        shape, splits = [None, *leaf.shape[1:]], leaf.row_splits.dtype
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, splits)
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return leaf


def _in_parts(leaf: Any) -> Any:
    if not isinstance(leaf, DistributedValues) or isinstance(leaf, tf.Variable):
        return leaf
    if any(isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) for value in leaf.values):
        raise TypeError(
            "Ragged and sparse tensors must be given whole to a partitioned function, but received "
            "the replicas' parts of one. Give it the elements of the dataset itself."
        )
    return _Parts(leaf.values)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


def _without_gradient(
    inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """Returns the outputs; a tape that goes back through them to the inputs is told why not."""

    def gradient(*_: tf.Tensor) -> Any:
        raise GradientError(
            "A gradient must be taken inside of a partitioned function, where it is that of the "
            "whole batch, but a tape outside goes back through one. Move the tape, and the call of "
            "its `gradient`, into the function."
        )

    @tf.custom_gradient
    def passed(*tensors: tf.Tensor) -> Any:
        return [tf.identity(tensor) for tensor in tensors[len(inputs) :]], gradient

    return passed(*inputs, *outputs)
