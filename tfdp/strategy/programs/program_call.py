"""The call of a partitioned program: every local replica runs it on its part of the batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdp.base import batch_shards
from tfdp.partition import (
    PARTIAL,
    Batch,
    Explanation,
    Layout,
    Registered,
    Sharded,
    compiled,
    explain,
    host_of,
    partition,
)
from tfdp.strategy.programs import (
    graph_options,
    ragged_arguments,
    reduction_order,
    replicated_operations,
)
from tfdp.strategy.programs.argument_agreement import ArgumentAgreement
from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.captured import Captured
from tfdp.strategy.programs.padding_rows import with_stand_in
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.programs.program_options import ProgramOptions
from tfdp.strategy.programs.tracing import unwatched
from tfdp.strategy.programs.traffic_recording import recorded


class ProgramCall:
    """A program for one cut of its arguments into batches, and the function that runs it.

    Args:
      support: Makes collectives.
      source: The traced function.
      captured: What it captures, as the local replicas have it.
      specs: The specifications of its arguments.
      layouts: Their layouts.
      batches: The batches that they are cut by, by the numbers that `cut` gives them.
      cut: How they are cut. Shares of batches hold a row also where only this replica has no
        example. How many examples all replicas have of each batch is the first argument of a call
        then.
      options: What the program is asked for.
      names: What its arguments are called.

    Attributes:
      program: The program of a replica.
      explained: The same before XLA compiled parts of it, in which operations would not be found.
    """

    @unwatched()
    def __init__(
        self,
        support: ProgramContext,
        source: tf.types.experimental.ConcreteFunction,
        captured: Captured,
        specs: Sequence[tf.TensorSpec],
        layouts: Sequence[Layout],
        batches: Mapping[int, Batch],
        cut: ArgumentSharding,
        options: ProgramOptions,
        names: Sequence[str] = (),
    ) -> None:
        self._cut, self._batches = cut, batches
        self._source, self._captured = source, captured
        self._layouts = layouts
        self._support = support
        self._devices = support.devices
        self._first_rank, self._num_replicas = support.first_rank, support.num_replicas
        # A replica's rows may be without values.
        self._may_be_empty = cut.may_be_empty or bool(cut.irregular)
        collectives, sequences = support.collectives()
        self._alone = len(self._devices) == self._num_replicas
        compares = options.compares and support.processes.world_size > 1
        self._told = ArgumentAgreement(source, captured, cut, names, support) if compares else None
        by_rows = [
            (each, batches[number])
            for each in cut.irregular
            if (number := cut.batches[each.first]) is not None
        ]
        self.program = partition(
            source.graph,
            layouts,
            captured.of_replicas,
            collectives,
            may_be_empty=self._may_be_empty,
            # Of one process' replicas rows are joined without a collective.
            keep_rows=options.keep_rows or self._alone,
            is_compiled=options.jit_compile,
            adds_in_any_order=reduction_order.is_any(self._devices),
            states=captured.states,
            sparse={each.first: rows for each, rows in by_rows if not each.depth},
            ragged={each.first: (rows, each.depth) for each, rows in by_rows if each.depth},
            compared=None if self._told is None else self._told.of_program,
        )
        places = [
            f"by batch {layout.batch.name}" if isinstance(layout, Sharded) else "whole"
            for layout in layouts
        ]
        said = f"the cut of arguments ({', '.join(places)})"
        self._number = support.agree_on(sequences, self.program, said)
        if support.first_rank == 0:
            replicated_operations.tell(self.program)
        self.explained = self.program
        if options.recorder is not None:
            self.program = recorded(self.program, options.recorder, source, support)
        if options.jit_compile:
            kind = tf.DeviceSpec.from_string(self._devices[0]).device_type
            self.program = compiled(self.program, kind)
        self._options = graph_options.of_program(self._devices)
        self._registered = Registered(
            self.program, self._devices, self._options.config_proto_serialized
        )
        self._joins = self._alone and not options.keep_rows
        self._signature = [
            [_of_part(spec)] * len(self._devices) if parts else [spec]
            for spec, parts in zip(specs, cut.in_parts, strict=True)
        ]
        if cut.of_shares:
            counts = tf.TensorSpec([cut.num_batches, self._num_replicas], tf.int32)
            self._signature.insert(0, [counts])
        self._may_loop = options.may_loop
        self._traced: dict[bool, tf.types.experimental.ConcreteFunction] = {}

    def run(self, *arguments: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Runs the program on every local replica.

        Args:
          *arguments: For each argument of the program the whole tensor, or the replicas' parts;
            of shares before them a list of the numbers of examples, int32, a row for each batch.

        Returns:
          For each output of the program a list: the whole value, or the rows of each replica.
        """
        inlined = tf.executing_eagerly() or not self._may_loop
        if inlined not in self._traced:
            # A function also where `tf.config.run_functions_eagerly` is on: replicas that ran one
            # after the other would wait for each other.
            run = tf.function(functools.partial(self._run, inlined), autograph=False)
            with tf.init_scope(), unwatched():
                self._traced[inlined] = run.get_concrete_function(*self._signature)
        with graph_options.calling_with(self._options):
            return self._traced[inlined](*arguments)

    def on_replica(self, index: int, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the program, whose arguments no batch cuts, on one local replica, in a graph.

        All replicas must. It begins where it can before all of its arguments are there.

        Args:
          index: The replica's number among the local ones.
          tensors: What it has of each argument.

        Returns:
          The outputs, whole.
        """
        with tf.control_dependencies(self._refreshed(index)):
            given = [tf.constant(self._first_rank + index), *tensors]
            given += [states[index] for states in self.program.externals]
            outputs = self._call(self._registered.names(inlined=False)[index], given)
        return [self._shaped(each, which) for which, each in enumerate(outputs)]

    def explain(self, shapes: Sequence[tf.TensorShape]) -> Explanation:
        """Returns what the program exchanges, and why, for arguments of these shapes, if known."""
        lengths = {
            layout.batch: shape[0]
            for layout, shape in zip(self._layouts, shapes, strict=False)
            if isinstance(layout, Sharded) and shape[0] is not None
        }
        return explain(self.explained, lengths)

    def _run(self, inlined: bool, *arguments: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        self._support.processes.count_step()
        names = self._registered.names(inlined=inlined)
        counts: tf.Tensor | None = None
        if self._cut.of_shares:
            (counts,), *rest = arguments
            arguments = tuple(rest)
        checks, told = [], None
        if self._told is not None and self._told.of_program is not None:
            told = self._told.row(arguments, self._number)
        elif self._told is not None:
            checks = self._told.checks(arguments, self._number)
        with tf.control_dependencies([*self._refreshed(), *checks]):
            arguments, places = self._regular(arguments, counts)
            stand_ins = self._stand_ins(places, arguments)
            results = []
            for index, device in enumerate(self._devices):
                with tf.device(device):
                    results.append(
                        self._on_replica(index, names[index], places, arguments, stand_ins, told)
                    )
        found = []
        for which, layout in enumerate(self.program.outputs):
            if not isinstance(layout, Sharded):
                found.append([self._shaped(results[0][which], which)])
                continue
            rows = [
                self._rows(outputs[which], layout, places[layout.batch][self._first_rank + index])
                for index, outputs in enumerate(results)
            ]
            joined = [tf.concat(rows, layout.axis)] if self._joins else rows
            found.append([self._shaped(each, which) for each in joined])
        return found

    def _refreshed(self, index: int | None = None) -> list[tf.Operation]:
        """Writes the copies of variables from outside of the strategy's scope.

        Args:
          index: The local replica whose copies are meant; None: all.
        """
        updates = []
        for handle, copies in self._captured.refreshed:
            # The first replica has the variable itself.
            own = copies if index is None else copies[index - 1 : index] if index else []
            if own:
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=own[0].dtype)
                updates += [copy.assign(value, read_value=False) for copy in own]
        return updates

    def _regular(
        self, arguments: Sequence[Sequence[tf.Tensor]], counts: tf.Tensor | None
    ) -> tuple[tuple[Sequence[tf.Tensor], ...], Mapping[Batch, tf.Tensor]]:
        """Returns the arguments with the components of ragged and sparse ones, and all places."""
        places, found = self._places(arguments, counts), list(arguments)
        for each in self._cut.irregular:
            number, layout = self._cut.batches[each.first], self._layouts[each.first]
            rows = None if counts is None else counts[number]
            given = [arguments[index] for index in each.arguments]
            parts, entries = ragged_arguments.components(each, given, rows, self._support)
            found[each.first : each.arguments.stop] = parts
            assert isinstance(layout, Sharded)
            places[layout.batch] = entries
        return tuple(found), places

    def _places(
        self, arguments: Sequence[Sequence[tf.Tensor]], counts: tf.Tensor | None
    ) -> dict[Batch, tf.Tensor]:
        """Returns of each batch the number of each replica's examples, an int32 vector.

        Args:
          arguments: The arguments.
          counts: A row of them for each batch whose shares they are; None: they are no shares.
        """
        found: dict[Batch, tf.Tensor] = {}
        if counts is not None:
            with tf.device("CPU:0"):
                return {batch: counts[number] for number, batch in self._batches.items()}
        regular = zip(
            self._layouts, arguments, self._cut.in_parts, self._cut.are_regular, strict=True
        )
        for layout, parts, in_parts, is_regular in regular:
            if not (is_regular and isinstance(layout, Sharded)) or layout.batch in found:
                continue
            sizes = [tf.shape(part)[0] for part in parts]
            with tf.device("CPU:0"):
                if in_parts:
                    found[layout.batch] = self._support.of_all(tf.stack(sizes))
                else:
                    ranks = tf.range(self._num_replicas)
                    found[layout.batch] = batch_shards.share_place(
                        sizes[0], self._num_replicas, ranks
                    )[1]
        return found

    def _on_replica(
        self,
        index: int,
        name: str,
        places: Mapping[Batch, tf.Tensor],
        arguments: Sequence[Sequence[tf.Tensor]],
        stand_ins: Sequence[tf.Tensor | None],
        told: tf.Tensor | None,
    ) -> list[tf.Tensor]:
        rank = self._first_rank + index
        begins = {}
        with tf.device(host_of(self._devices[index])):
            given: list[tf.Tensor] = [tf.constant(rank)]
            for batch in self.program.batches:
                counts = places[batch]
                count, total = counts[rank], tf.reduce_sum(counts)
                begins[batch] = tf.reduce_sum(counts[:rank])
                given += [counts, count, tf.maximum(count, 1), begins[batch], total]
        first = len(given)
        for layout, parts, stand_in in zip(self._layouts, arguments, stand_ins, strict=True):
            if layout == PARTIAL:
                given.append(parts[index])
            elif not isinstance(layout, Sharded):
                given.append(parts[0])
            elif stand_in is not None:
                given.append(self._with_stand_in(parts[index], stand_in))
            elif self._cut.of_shares:
                given.append(self._with_stand_in(parts[index], parts[index]))
            else:
                count = places[layout.batch][rank]
                given.append(self._share(parts[0], begins[layout.batch], count))
        if told is not None:
            given.append(told)
        with tf.control_dependencies(given[first:]):
            # TensorFlow inlines calls in a graph: what needs no example, such as to count a step,
            # would be done though the data's iterator then says that there is none.
            given += [tf.identity(states[index]) for states in self.program.externals]
        return self._call(name, given)

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

    def _share(self, whole: tf.Tensor, begin: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a replica; one without any has the batch's last as a stand-in."""
        if not self._may_be_empty:
            return whole[begin : begin + count]
        rows = tf.maximum(count, 1)
        begin = tf.minimum(begin, tf.maximum(tf.shape(whole)[0] - rows, 0))
        return with_stand_in(whole[begin : begin + rows], whole[:0])

    def _stand_ins(
        self, places: Mapping[Batch, tf.Tensor], arguments: Sequence[Sequence[tf.Tensor]]
    ) -> list[tf.Tensor | None]:
        """Returns of each argument that is given in parts rows of some examples; None: of others.

        A program may fail on other numbers than an example's, such as a division by zeros. A row
        comes from another process if this one has none, and some replica has none.
        """
        found: list[tf.Tensor | None] = []
        are_cut = zip(
            self._layouts, arguments, self._cut.in_parts, self._cut.are_regular, strict=True
        )
        for layout, parts, in_parts, is_regular in are_cut:
            hold_some = self._cut.of_shares and is_regular
            if hold_some or not (in_parts and isinstance(layout, Sharded)):
                found.append(None)
                continue
            own = tf.concat([part[:1] for part in parts], 0)
            if not self._alone and self._may_be_empty:
                has_some = tf.minimum(places[layout.batch], 1)
                own = tf.cond(
                    tf.reduce_all(has_some > 0),
                    functools.partial(tf.identity, own),
                    functools.partial(self._support.of_all, own),
                )
            found.append(own)
        return found

    def _with_stand_in(self, rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        return with_stand_in(rows, others) if self._may_be_empty else rows

    @staticmethod
    def _rows(output: tf.Tensor, layout: Sharded, count: tf.Tensor) -> tf.Tensor:
        """Returns what a replica gives for its examples, without a stand-in's."""
        place = [slice(None)] * layout.axis + [slice(0, count * layout.inner)]
        return output[tuple(place)]

    def _shaped(self, output: tf.Tensor, which: int) -> tf.Tensor:
        """Returns an output with what the trace knows of its shape."""
        traced = self._source.outputs[which]
        if traced.dtype in (tf.resource, tf.variant):
            return tf.identity(output)
        shape = traced.shape
        layout = self.program.outputs[which]
        if isinstance(layout, Sharded) and not self._joins and shape.rank is not None:
            sizes = shape.as_list()
            sizes[layout.axis] = None
            shape = tf.TensorShape(sizes)
        output = tf.identity(output)
        output.set_shape(shape)
        return output


def _of_part(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the specification of a replica's part of a tensor, which has other rows."""
    if not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


class _Named:
    """A function by its name, as TensorFlow's operations take it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add_to_graph(self, graph: tf.Graph) -> None:
        """Does nothing: the runtime knows the function."""
