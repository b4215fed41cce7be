"""From a traced function and the layouts of its inputs to the program of one replica."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from tfdp.partition import host_placement
from tfdp.partition import rules as _rules  # noqa: F401 - registers them
from tfdp.partition._tensorflow import FuncGraph, FunctionDef
from tfdp.partition.communicator import Collective, Communicator
from tfdp.partition.layouts import REPLICATED, Layout, Sharded
from tfdp.partition.per_replica_call import PerReplicaCodeError
from tfdp.partition.program_record import ProgramRecord
from tfdp.partition.propagation import Propagation
from tfdp.partition.redistribute import Waiting
from tfdp.partition.replica_program import ProgramBuilder
from tfdp.partition.row_ids import INDICES, RowIds, shape_of, splits_of
from tfdp.partition.sizes import Batch
from tfdp.partition.source import SourceGraph
from tfdp.partition.tensors import Tensor, static_shape


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """The program of a replica, the same for all but for the functions of its collectives.

    Attributes:
      name: The name of its function. Its arguments are the replica's number; for each batch the
        numbers of a `Place`; what the replica holds of the inputs; and `externals`.
      functions: The function, and those that it calls.
      batches: The batches, in the order of their arguments.
      externals: What it takes from outside, such as variables: one for each local replica.
      collectives: The functions of collectives, by the names by which the program calls them.
      outputs: The layouts of what it returns, in the order of the function's outputs.
      dtypes: The dtypes of what it returns.
      report: What it exchanges, and why.
      source: The one-device program that it was made from.
      may_skip: Whether a replica whose terms are left out already may run it on no examples.
    """

    name: str
    functions: Sequence[FunctionDef]
    batches: Sequence[Batch]
    externals: Sequence[Sequence[tf.Tensor]]
    collectives: Mapping[str, Collective]
    outputs: Sequence[Layout]
    dtypes: Sequence[tf.DType]
    report: ProgramRecord
    source: SourceGraph
    may_skip: bool = False


def partition(
    graph: FuncGraph,
    layouts: Sequence[Layout],
    captured: Sequence[Sequence[tf.Tensor]],
    communicator: Communicator,
    *,
    may_be_empty: bool,
    keep_rows: bool,
    is_compiled: bool = False,
    adds_in_any_order: bool = False,
    states: Sequence[Layout] | None = None,
    sparse: Mapping[int, Batch] = MappingProxyType({}),
    ragged: Mapping[int, tuple[Batch, int]] = MappingProxyType({}),
    compared: tuple[tf.TensorSpec, Sequence[str]] | None = None,
) -> ReplicaProgram:
    """Makes the program that each of N replicas runs from the one that one device runs.

    Args:
      graph: The traced function.
      layouts: The layouts of its arguments: whole, or sharded by the batches that its axes are.
      captured: What it captures from outside, one tensor for each local replica.
      communicator: Makes the collectives.
      may_be_empty: Whether a replica may have no examples of a batch.
      keep_rows: Whether an output that is sharded along an axis of its own, example by example, is
        returned as the replica's rows; else all outputs are whole.
      is_compiled: Whether XLA draws the program's random numbers, see `compiling`.
      adds_in_any_order: Whether kernels add what goes to one place as it comes, as a GPU's do.
      states: For each of `captured` how the replicas' copies of a variable make its value, see
        `rules.variables`; None: all are alike.
      sparse: By the number of its first component, which indices, values and shape are, for each
        sparse tensor of which a replica has the entries in its rows the rows' batch.
      ragged: By the number of its first component, which values and then splits are, for each
        ragged tensor of which a replica has the values of its rows the rows' batch, and the number
        of splits, which are replicated.
      compared: The matrix of numbers that processes compare, a row for each, and what its columns
        are called, see `Communicator.sum`: the partial of a replica is the argument after all
        inputs. None: they compare nothing.

    Raises:
      PartitionError: An operation cannot be partitioned.
    """
    sharded = [layout.batch for layout in layouts if isinstance(layout, Sharded)]
    of_ragged = [batch for batch, _ in ragged.values()]
    batches = list(dict.fromkeys([*sharded, *sparse.values(), *of_ragged]))
    program = ProgramBuilder(
        graph.name, batches, communicator, may_be_empty, is_compiled, adds_in_any_order
    )
    source = SourceGraph(graph)
    inputs: list[Tensor] = []
    for tensor, layout in zip(source.inputs, layouts, strict=False):
        argument = program.main.argument(f"input_{len(inputs)}", tensor.dtype)
        shape = static_shape(tensor.shape)
        if isinstance(layout, Sharded) and shape is not None:
            shape[layout.axis] = layout.length
        inputs.append(Tensor(argument, layout, shape))
    for first, batch in sparse.items():
        entries = inputs[first].sharded
        assert entries is not None
        inputs[first].names = RowIds(batch, entries.batch, INDICES)
        inputs[first + 2].names = shape_of(batch)
    for first, (batch, depth) in ragged.items():
        entries = inputs[first].sharded
        assert entries is not None
        for level in range(depth):
            inputs[first + 1 + level].names = splits_of(batch, entries.batch, level, depth)
    if compared is not None:
        spec, names = compared
        program.compare(program.main.argument("told", spec.dtype), spec, names)
    for index, tensors in enumerate(captured):
        own = source.inputs[len(layouts) + index]
        state = states[index] if states is not None else REPLICATED
        if isinstance(state, Sharded):
            program.place(state.batch)
        inputs.append(Tensor(program.external(tensors), state, static_shape(own.shape)))
    walk = Propagation(program, program.main)
    try:
        outputs, effects = walk.run(source, inputs)
    except PerReplicaCodeError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None
    kept = [
        keep_rows
        and isinstance(output.layout, Sharded)
        and output.layout.outer == 1
        and isinstance(output.layout.inner, int)
        and output.layout.batch in batches
        for output in outputs
    ]
    made_whole = [output for output, is_kept in zip(outputs, kept, strict=True) if not is_kept]
    try:
        walk.convert.require_sums(made_whole)
    except Waiting as waiting:
        walk.convert.op = None
        unique = {id(tensor): tensor for tensor in waiting.tensors}
        walk.convert.sum(list(unique.values()), "it is returned")
    returned = [
        output.local if is_kept else walk.convert.replicated(output, "it is returned")
        for output, is_kept in zip(outputs, kept, strict=True)
    ]
    program.compare_at_last()
    main = program.main.finish(returned, program.effects(program.main, effects))
    functions = [*program.functions, main]
    # Not those of loops, whose devices would wait for each other in each pass.
    host_placement.move(main, program.numbers())
    # Those of a loop's body that was written anew are left over.
    called = {
        node.attr["f"].func.name for each in functions for node in each.node_def if "f" in node.attr
    }
    return ReplicaProgram(
        name=program.main.name,
        functions=functions,
        batches=batches,
        externals=[tensors for _, tensors in program.externals],
        collectives={
            name: collective for name, collective in program.collectives.items() if name in called
        },
        outputs=[
            output.layout if is_kept else REPLICATED
            for output, is_kept in zip(outputs, kept, strict=True)
        ],
        dtypes=[output.dtype for output in returned],
        report=program.report,
        source=source,
        # What replicas exchange besides needs the examples of all.
        may_skip=program.may_skip
        and not any(kept)
        and not (sparse or ragged)
        and all(each.kind == "update" for each in program.report.exchanged),
    )
