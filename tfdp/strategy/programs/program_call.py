"""The call of a partitioned program: every local replica runs it on its part of the batches."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.partition import Registered, Sharded
from tfdp.strategy._tensorflow_programs import ConfigProto, FunctionCallOptions, context
from tfdp.strategy.programs.argument_sharding import ArgumentLayouts
from tfdp.strategy.programs.function_outputs import marked
from tfdp.strategy.programs.program_build import ProgramBuild
from tfdp.strategy.programs.program_trace import ProgramTrace
from tfdp.strategy.programs.replica_rows import ReplicaRows
from tfdp.strategy.programs.tracing import unwatched


class ProgramCall:
    """The function that runs a program.

    Args:
      trace: The trace of one device that the program is made of.
      given: The layouts of its arguments.

    Attributes:
      built: The program, and what is known of it.
      program: The program of a replica.
    """

    @unwatched()
    def __init__(self, trace: ProgramTrace, given: ArgumentLayouts) -> None:
        self._trace, self._given, self._context = trace, given, trace.context
        self.built = ProgramBuild(trace, given)
        self.program = self.built.program
        devices = self._context.devices
        self._options = call_options(devices)
        self._registered = Registered(self.program, devices, self._options.config_proto_serialized)
        self._traced: dict[bool, tf.types.experimental.ConcreteFunction] = {}

    def run(self, *arguments: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Runs the program on every local replica.

        Args:
          *arguments: For each argument of the program the whole tensor, or the replicas' parts;
            of shares before them a list of the numbers of examples, int32, a row for each batch.

        Returns:
          For each output of the program a list: the whole value, or the rows of each replica.
        """
        inlined = tf.executing_eagerly() or not self._trace.options.may_loop
        if inlined not in self._traced:
            # A function also where `tf.config.run_functions_eagerly` is on: replicas that ran one
            # after the other would wait for each other.
            run = tf.function(functools.partial(self._run, inlined), autograph=False)
            signature = self._given.signature(len(self._context.devices))
            if self._given.sharding.of_shares:
                shape = [self._given.sharding.num_batches, self._context.num_replicas]
                signature.insert(0, [tf.TensorSpec(shape, tf.int32)])
            with tf.init_scope(), unwatched():
                self._traced[inlined] = run.get_concrete_function(*signature)
        with calling_with(self._options):
            return self._traced[inlined](*arguments)

    def on_replica(self, index: int, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the program, whose arguments no batch shards, on one local replica, in a graph.

        All replicas must. It begins where it can before all of its arguments are there.

        Args:
          index: The replica's number among the local ones.
          tensors: What it has of each argument.

        Returns:
          The outputs, whole.
        """
        with tf.control_dependencies(self._refreshed(index)):
            given = [tf.constant(self._context.first_rank + index), *tensors]
            given += [states[index] for states in self.program.externals]
            outputs = self._call(self._registered.names(inlined=False)[index], given)
        return [self._shaped(each, which) for which, each in enumerate(outputs)]

    def _run(self, inlined: bool, *arguments: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        self._context.processes.count_step()
        names = self._registered.names(inlined=inlined)
        counts: tf.Tensor | None = None
        if self._given.sharding.of_shares:
            (counts,), *rest = arguments
            arguments = tuple(rest)
        agreement, number = self.built.agreement, self.built.number
        checks: list[tf.Operation] = []
        told: list[tf.Tensor] = []
        if agreement is not None and agreement.of_program is not None:
            told = [agreement.row(arguments, number)]
        elif agreement is not None:
            checks = agreement.checks(arguments, number)
        results = []
        with tf.control_dependencies([*self._refreshed(), *checks]):
            is_late = self._context.is_late() if self.program.may_skip else None
            rows = ReplicaRows(self._context, self._given, arguments, counts, is_late)
            for index, device in enumerate(self._context.devices):
                with tf.device(device):
                    numbers, own = rows.of_replica(index, self.program.batches)
                    own += told
                    with tf.control_dependencies(own):
                        # TensorFlow inlines calls in a graph: what needs no example, such as to
                        # count a step, would be done though the data's iterator then says that
                        # there is none.
                        own += [tf.identity(states[index]) for states in self.program.externals]
                    results.append(self._call(names[index], numbers + own))
        found = []
        for which, layout in enumerate(self.program.outputs):
            outputs = [result[which] for result in results]
            if isinstance(layout, Sharded):
                outputs = [
                    rows.of_output(output, layout, index) for index, output in enumerate(outputs)
                ]
                if self.built.joins:
                    outputs = [tf.concat(outputs, layout.axis)]
            else:
                outputs = outputs[:1]
            found.append([self._shaped(each, which) for each in outputs])
        return found

    def _refreshed(self, index: int | None = None) -> list[tf.Operation]:
        """Writes the copies of variables from outside of the strategy's scope.

        Args:
          index: The local replica whose copies are meant; None: all.
        """
        updates = []
        for handle, copies in self._trace.captured.refreshed:
            # The first replica has the variable itself.
            own = copies if index is None else copies[index - 1 : index] if index else []
            if own:
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=own[0].dtype)
                updates += [copy.assign(value, read_value=False) for copy in own]
        return updates

    def _call(self, name: str, given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=given,
            Tout=self.program.dtypes,
            f=_Named(name),
            config_proto=self._options.config_proto_serialized,
        )
        if isinstance(outputs, tf.Operation):  # which gives nothing
            return []
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def _shaped(self, output: tf.Tensor, which: int) -> tf.Tensor:
        """Returns an output with what the trace knows of its shape, and no gradient."""
        traced = self._trace.source.outputs[which]
        output = marked(output)
        if traced.dtype in (tf.resource, tf.variant):
            return output
        shape = traced.shape
        layout = self.program.outputs[which]
        if isinstance(layout, Sharded) and not self.built.joins and shape.rank is not None:
            sizes = shape.as_list()
            sizes[layout.axis] = None
            shape = tf.TensorShape(sizes)
        output.set_shape(shape)
        return output


class _Named:
    """A function by its name, as TensorFlow's operations take it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add_to_graph(self, graph: tf.Graph) -> None:
        """Does nothing: the runtime knows the function."""


# Fuses operations.
ON_CPUS = ("remap",)


def call_options(devices: Sequence[str]) -> FunctionCallOptions:
    """Returns the options that the call of a program is optimized with.

    Grappler rewrites the graph of a function that is called, in which the programs of all local
    replicas are inlined. All of its optimizers took three quarters of the time before the first
    step of a convolutional network on four replicas, and a step was no faster for them.

    What was set by `tf.config.optimizer` is kept as it is, and so is all of Grappler on
    accelerators.

    Args:
      devices: The devices of the local replicas.
    """
    usual = context().function_call_options
    config = ConfigProto()
    config.ParseFromString(usual.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    if kinds == {"CPU"} and rewrites == type(rewrites)():
        rewrites.optimizers.extend(ON_CPUS)
        rewrites.meta_optimizer_iterations = rewrites.ONE
        rewrites.disable_tfg_optimizer = True
    return FunctionCallOptions(usual.executor_type, config)


@contextlib.contextmanager
def calling_with(options: FunctionCallOptions) -> Iterator[None]:
    """Functions that this thread calls within it are optimized with the options."""
    runtime = context()
    before = runtime.function_call_options
    runtime.function_call_options = options
    try:
        yield
    finally:
        runtime.function_call_options = before
