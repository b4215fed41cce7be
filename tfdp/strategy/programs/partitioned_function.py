"""`strategy.partitioned`: a function that is written for one device, run by all replicas."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.recording import Recorder
from tfdp.communication.collectives import collective_failure
from tfdp.communication.replicas import BatchShard
from tfdp.partition import Explanation, ProgramRecord, lines_named
from tfdp.strategy._tensorflow import regroup
from tfdp.strategy._tensorflow_programs import could_possibly_record
from tfdp.strategy.programs import argument_free_effects
from tfdp.strategy.programs.arguments import Arguments, plain
from tfdp.strategy.programs.function_outputs import unrecorded
from tfdp.strategy.programs.one_device_function import AbstractOneDeviceFunction
from tfdp.strategy.programs.program_call import ProgramCall
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.programs.program_trace import ProgramOptions, ProgramTrace
from tfdp.strategy.programs.trace_calls import TraceCalls
from tfdp.strategy.programs.uneven_batches import RowCounts


class Partitioned(AbstractOneDeviceFunction):
    """A function for one device that the replicas' programs compute, which are made of its traces.

    `tfdp.DataParallelStrategy.partitioned` makes it and says what it does.

    Args:
      context: Traces it, and has the replicas.
      function: The function.
      input_signature: See `partitioned`.
      options: What its programs are asked for.
    """

    of_arguments = ("explain",)

    def __init__(
        self,
        context: ProgramContext,
        function: Callable[..., Any],
        input_signature: Sequence[Any] | None,
        options: ProgramOptions,
    ) -> None:
        super().__init__(function)
        self._context = context
        self._signature = None if input_signature is None else tuple(input_signature)
        self._options = options
        self._traces: dict[Any, list[TraceCalls]] = {}
        self._asks_for_sizes: set[Any] = set()
        # By what arguments are, those of calls that need no look at them again.
        self._known: dict[Hashable, tuple[ProgramTrace, ProgramCall]] = {}
        self._latest: ProgramCall | None = None
        self._latest_trace: ProgramTrace | None = None
        self._without_arguments: dict[ProgramTrace, Partitioned | None] = {}

    def _like(self, function: Callable[..., Any]) -> Partitioned:
        return Partitioned(self._context, function, self._signature, self._options)

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not tf.executing_eagerly():
            arguments = Arguments(args, kwargs)
            calls = self._calls(arguments)
            calls.trace.watch()  # tapes around the graph, if there are
            return self._called_with(calls, arguments)
        with self._context.processes.explained():
            try:
                return self._called_eagerly(args, kwargs)
            except tf.errors.OpError as error:
                raise self.naming_lines(error) from None

    def _called_eagerly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = plain((args, kwargs))
        if given is not None and given.key in self._known and not could_possibly_record():
            trace, call = self._latest_trace, self._latest = self._known[given.key]
            return trace.outputs.packed(_joined(call.run(*([each] for each in given.tensors))))
        arguments = Arguments(args, kwargs)
        calls = self._calls(arguments)
        outputs = self._called_with(calls, arguments)
        if given is not None and self._latest is not None:
            self._known[given.key] = calls.trace, self._latest
        return outputs

    def _called_with(
        self, calls: TraceCalls, arguments: Arguments, counts: RowCounts | None = None
    ) -> Any:
        trace = self._latest_trace = calls.trace
        outputs = unrecorded(
            functools.partial(self._run, calls, arguments, counts),
            lambda: [part for parts in arguments.parts for part in parts] + trace.values(),
        )
        return trace.outputs.packed(outputs)

    @tf.autograph.experimental.do_not_convert
    def on_shares(self, shard: BatchShard) -> Any:
        """Runs the function on a batch, of which every process has its own replicas' shares.

        Args:
          shard: The shards, with a `tf.distribute.DistributedValues` for each tensor.
        """
        counts = RowCounts.of(shard)
        even_over = self._context.num_replicas if counts.all_have_some else 0
        arguments = Arguments((shard.rows,), {}, even_over)
        return self._called_with(self._calls(arguments), arguments, counts)

    def write_without_arguments(self) -> None:
        """Writes what the program of the latest call writes before it needs an argument."""
        trace = self._latest_trace
        if trace is None:
            return
        if trace not in self._without_arguments:
            write = argument_free_effects.function_of(trace.source)
            options = ProgramOptions(keep_rows=False, jit_compile=False)
            self._without_arguments[trace] = (
                None if write is None else Partitioned(self._context, write, None, options)
            )
        writing = self._without_arguments[trace]
        if writing is not None:
            writing()

    def naming_lines(self, error: tf.errors.OpError) -> tf.errors.OpError:
        """Returns the error of an operation, with the line that made it if it is the program's.

        Of a collective that failed it has the lines that may have wanted it.
        """
        graphs = [each.trace.source.graph for traces in self._traces.values() for each in traces]
        lines = [line for graph in graphs for line in lines_named(graph, error.message)]
        step = ""
        if not lines and self._latest is not None and collective_failure.by(error.message):
            lines = self._latest.program.report.wanting(error.message)
            step = f" `{getattr(self.python_function, '__name__', 'a step')}`"
        if not lines:
            return error
        said = f"{error.message}\nIn the program{step}: {'; '.join(dict.fromkeys(lines))}."
        return type(error)(error.node_def, error.op, said)

    def prepare(self, recorder: Recorder | None, may_loop: bool) -> None:
        """Says, before its first call, what is known of all calls: their arguments are compared.

        Args:
          recorder: What records its steps; None: nothing does.
          may_loop: Whether a graph that calls it may be a loop's body.
        """
        assert not self._traces
        self._options = self._options._replace(recorder=recorder, may_loop=may_loop, compares=False)

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
        arguments = Arguments(args, kwargs)
        sharding = self._context.sharding(arguments)
        return self._calls(arguments).by(sharding).built.explain(arguments.shapes)

    def explain_latest(self) -> Explanation:
        """Returns what the program of the latest call exchanges, and why: see `explain`.

        Bytes of tensors that are sharded are in terms of the batches' lengths.

        Raises:
          ValueError: It was not called yet.
        """
        if self._latest is None:
            raise ValueError("A function must have been called to explain its latest call.")
        return self._latest.built.explain(())

    def experimental_get_tracing_count(self) -> int:
        """Returns how often the function was traced, as a `tf.function` does."""
        return sum(map(len, self._traces.values()))

    def _calls(self, arguments: Arguments) -> TraceCalls:
        """Returns the calls of a trace that takes the arguments; if there is none it is traced."""
        signed = None if self._signature is None else arguments.signed(self._signature)
        key = arguments.key
        traces = self._traces.setdefault(key, [])
        for calls in traces:
            if calls.trace.takes(arguments.shapes):
                return calls
        function, names = arguments.function(self.python_function), arguments.names()

        def trace(specs: Sequence[tf.TensorSpec]) -> TraceCalls:
            made = ProgramTrace(self._context, function, specs, self._options, names)
            traces.append(TraceCalls(made))
            return traces[-1]

        if signed is not None:
            return trace(signed)
        before = traces[-1].trace.specs if traces else None
        specs, fixed = arguments.specs(before), arguments.fixed()
        if key in self._asks_for_sizes:
            specs = fixed
        drawn = random.getstate(), np.random.get_state()
        try:
            return trace(specs)
        except (TypeError, ValueError, NotImplementedError, tf.errors.InvalidArgumentError):
            if fixed == specs:
                raise
            # The function asks Python for sizes: it is traced for these alone, as on one device.
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
            made = trace(fixed)
            self._asks_for_sizes.add(key)
            return made

    def _run(self, calls: TraceCalls, arguments: Arguments, counts: RowCounts | None) -> list[Any]:
        if counts is None:
            sharding = self._context.sharding(arguments)
        else:
            sharding = arguments.sharding_of_shards(counts)
        self._latest = calls.by(sharding)
        if counts is None:
            return _joined(calls.run(arguments, sharding))
        return _joined(calls.run_on_shares(sharding, counts, arguments.parts))

    @property
    def report(self) -> ProgramRecord:
        """The record of what the latest call's program exchanges."""
        assert self._latest is not None, "it was not called yet"
        return self._latest.program.report


def _joined(found: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
    """Returns the outputs of which each is one tensor, or what the local replicas have of it."""
    return [each[0] if len(each) == 1 else regroup(tuple(each), always_wrap=True) for each in found]
