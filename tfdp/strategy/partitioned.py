"""`strategy.partitioned`: a function for one device, run by all replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdp import shares
from tfdp.partition import REPLICATED, Batch, Layout, Registered, Report, Sharded, partition
from tfdp.replicas import one_device
from tfdp.strategy import captured, tracing
from tfdp.strategy.program_collectives import ProgramCollectives

if TYPE_CHECKING:
    from tfdp.strategy.data_parallel import DataParallelStrategy


class Traced:
    """A function, traced once, and its programs for replicas.

    Args:
      strategy: The strategy.
      function: The function, of flat tensors.
      specs: Their specifications, the lengths of batches unknown.
    """

    def __init__(
        self,
        strategy: DataParallelStrategy,
        function: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
    ) -> None:
        self._strategy, self._specs = strategy, list(specs)
        traced = tf.function(function, autograph=False)
        with tracing.outside_of_graphs(), tracing.as_on_one_device(strategy):
            self.source = traced.get_concrete_function(*specs)
        self.captured = captured.captured_by(
            self.source.captured_inputs, strategy.extended.worker_devices
        )
        self._programs: dict[tuple[tuple[int | None, ...], bool], _Program] = {}

    def program(self, pattern: Sequence[int | None], may_be_empty: bool) -> _Program:
        """Returns the program for batches that are cut in one way.

        Args:
          pattern: For each tensor the number of its batch; None: it is given whole.
          may_be_empty: Whether a replica may have no examples.
        """
        key = tuple(pattern), may_be_empty
        if key not in self._programs:
            with tf.init_scope():
                self._programs[key] = _Program(self._strategy, self, *key)
        return self._programs[key]

    def layouts(self, pattern: Sequence[int | None]) -> list[Layout]:
        """Returns the layouts of the tensors, cut by a pattern."""
        batches: dict[int, Batch] = {}
        found: list[Layout] = []
        for spec, number in zip(self._specs, pattern, strict=True):
            if number is None:
                found.append(REPLICATED)
                continue
            if number not in batches:
                batches[number] = Batch(f"batch {number}", spec.shape[0])
            found.append(Sharded(0, batches[number]))
        return found


class _Program:
    """The programs of the local replicas, and the function that calls all of them."""

    def __init__(
        self,
        strategy: DataParallelStrategy,
        traced: Traced,
        pattern: Sequence[int | None],
        may_be_empty: bool,
    ) -> None:
        extended = strategy.extended
        self._traced, self._pattern = traced, pattern
        self._layouts = traced.layouts(pattern)
        self._first_rank, self._num_replicas = extended.first_rank, extended.num_replicas
        self._devices = extended.worker_devices
        sequences = extended.new_sequences()
        communicator = ProgramCollectives(
            extended.communication, extended.replicas.reducer, sequences, self._devices, self._first_rank
        )
        self.program = partition(
            traced.source.graph,
            self._layouts,
            traced.captured.of_replicas,
            communicator,
            may_be_empty=may_be_empty,
            keep_rows=len(self._devices) == self._num_replicas,
            states=traced.captured.states,
        )
        sequences.check()
        extended.agree_on(sequences, self.program.name)
        self._registered = Registered(self.program, self._devices)
        self.run = tf.function(self._run, autograph=False)

    def _run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.control_dependencies(self._refreshed()):
            tensors = tuple(tf.identity(tensor) for tensor in tensors)
        sizes = {
            layout.batch: tf.shape(tensor)[0]
            for layout, tensor in zip(self._layouts, tensors, strict=True)
            if isinstance(layout, Sharded)
        }
        results = []
        for index, device in enumerate(self._devices):
            with tf.device(device):
                results.append(self._on_replica(index, sizes, tensors))
        return [self._joined(each, sizes, results) for each in range(len(self.program.outputs))]

    def _refreshed(self) -> list[tf.Operation]:
        updates = []
        for handle, copies in self._traced.captured.refreshed:
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=copies[0].dtype)
            updates += [copy.assign(value).op for copy in copies]
        return updates

    def _on_replica(
        self, index: int, sizes: dict[Batch, tf.Tensor], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        rank = self._first_rank + index
        arguments: list[tf.Tensor] = [tf.constant(rank)]
        for batch in self.program.batches:
            size = sizes[batch]
            counts = shares.share_place(size, self._num_replicas, tf.range(self._num_replicas))[1]
            _, count, start, _ = shares.share_place(size, self._num_replicas, rank)
            arguments += [counts, count, tf.maximum(count, 1), start, size]
        for layout, tensor in zip(self._layouts, tensors, strict=True):
            if isinstance(layout, Sharded):
                _, count, start, size = shares.share_place(
                    sizes[layout.batch], self._num_replicas, rank
                )
                rows = tf.maximum(count, 1)
                begin = tf.minimum(start, tf.maximum(size - rows, 0))
                tensor = tensor[begin : begin + rows]
            arguments.append(tensor)
        arguments += [of_replicas[index] for of_replicas in self.program.externals]
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=arguments,
            Tout=self.program.dtypes,
            f=_Named(self._registered.names[index]),
            config_proto=_CONFIG,
        )
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def _joined(
        self, which: int, sizes: dict[Batch, tf.Tensor], results: Sequence[Sequence[tf.Tensor]]
    ) -> tf.Tensor:
        layout, traced = self.program.outputs[which], self._traced.source.outputs[which]
        if not isinstance(layout, Sharded):
            joined = tf.identity(results[0][which])
        else:
            parts = []
            for rank, outputs in enumerate(results):
                count = shares.share_place(sizes[layout.batch], self._num_replicas, rank)[1]
                part = outputs[which]
                part = tf.ensure_shape(part, [None] * traced.shape.rank)
                place = [slice(None)] * layout.axis + [slice(0, count * layout.inner)]
                parts.append(part[tuple(place)])
            joined = tf.concat(parts, layout.axis)
        if joined.dtype not in (tf.resource, tf.variant):
            joined.set_shape(traced.shape)
        return joined


class _Named:
    """A function by its name, as TensorFlow's operations take it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add_to_graph(self, graph: tf.Graph) -> None:
        """Does nothing: the runtime knows the function."""


_CONFIG = ""


class Partitioned:
    """A function for one device that all replicas of a strategy run together."""

    def __init__(self, strategy: DataParallelStrategy, function: Callable[..., Any]) -> None:
        self._strategy, self._function = strategy, function
        self._traced: dict[Any, tuple[Traced, Any]] = {}
        self._latest: _Program | None = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on the global batch."""
        if one_device.is_traced():
            return self._function(*args, **kwargs)
        flat = tf.nest.flatten((args, kwargs), expand_composites=True)
        tensors = [tf.convert_to_tensor(leaf) for leaf in flat]
        lengths = [tensor.shape[0] if tensor.shape.rank else None for tensor in tensors]
        numbers: dict[int, int] = {}
        pattern = [
            None if length is None else numbers.setdefault(length, len(numbers))
            for length in lengths
        ]
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]] if tensor.shape.rank else [], tensor.dtype)
            for tensor in tensors
        ]
        key = tuple((spec.dtype.name, tuple(spec.shape)) for spec in specs)
        if key not in self._traced:

            def of_flat(*leaves: tf.Tensor) -> Any:
                given, named = tf.nest.pack_sequence_as(
                    (args, kwargs), leaves, expand_composites=True
                )
                return self._function(*given, **named)

            self._traced[key] = (Traced(self._strategy, of_flat, specs), None)
        traced, _ = self._traced[key]
        may_be_empty = any(
            length < self._strategy.extended.num_replicas for length in numbers
        )
        self._latest = traced.program(pattern, may_be_empty)
        outputs = self._latest.run(*tensors)
        structure = traced.source.structured_outputs
        return tf.nest.pack_sequence_as(structure, outputs, expand_composites=True)

    @property
    def report(self) -> Report:
        """What the latest call's program exchanges, and why."""
        assert self._latest is not None
        return self._latest.program.report
