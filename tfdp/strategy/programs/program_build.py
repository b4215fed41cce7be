"""The program of a replica, made of a trace for one way in which its arguments are sharded."""

import logging
from collections.abc import Sequence

import tensorflow as tf

from tfdp.base import words
from tfdp.partition import Batch, Explanation, ReplicaProgram, Sharded, compiled, explain, partition
from tfdp.partition.program_record import PRODUCTS, Gathered
from tfdp.partition.sizes import divided
from tfdp.strategy.programs import reduction_order
from tfdp.strategy.programs.argument_agreement import ArgumentAgreement
from tfdp.strategy.programs.argument_sharding import ArgumentLayouts
from tfdp.strategy.programs.program_trace import ProgramTrace
from tfdp.strategy.programs.traffic_recording import recorded


class ProgramBuild:
    """A program of replicas, which all processes have agreed on.

    Args:
      trace: The trace of one device.
      given: The layouts of its arguments.

    Attributes:
      program: The program of a replica.
      explained: The same before XLA compiled parts of it, in which operations would not be found.
      number: A number of 24 bits that tells the program from others.
      agreement: What processes tell each other of a call; None: nothing.
      joins: Whether the rows of an output are joined: this process has them all.
    """

    def __init__(self, trace: ProgramTrace, given: ArgumentLayouts) -> None:
        context, options, source = trace.context, trace.options, trace.source
        self._layouts = given.layouts
        collectives, sequences = context.collectives()
        is_alone = len(context.devices) == context.num_replicas
        self.joins = is_alone and not options.keep_rows
        compares = options.compares and context.processes.world_size > 1
        self.agreement = (
            ArgumentAgreement(source, trace.captured, given.sharding, trace.names, context)
            if compares
            else None
        )
        self.program = partition(
            source.graph,
            given.layouts,
            trace.captured.of_replicas,
            collectives,
            may_be_empty=given.may_be_empty,
            # Of one process' replicas rows are joined without a collective.
            keep_rows=options.keep_rows or is_alone,
            is_compiled=options.jit_compile,
            adds_in_any_order=reduction_order.is_any(context.devices),
            states=trace.captured.states,
            sparse={each.first: rows for each, rows in given.irregular if not each.depth},
            ragged={each.first: (rows, each.depth) for each, rows in given.irregular if each.depth},
            compared=None if self.agreement is None else self.agreement.of_program,
        )
        places = [
            f"by batch {layout.batch.name}" if isinstance(layout, Sharded) else "whole"
            for layout in given.layouts
        ]
        said = f"the sharding of arguments ({', '.join(places)})"
        self.number = context.agree_on(sequences, self.program, said)
        if context.first_rank == 0:
            tell(self.program, context.warned_about)
        self.explained = self.program
        if options.recorder is not None:
            self.program = recorded(self.program, options.recorder, source, context)
        if options.jit_compile:
            kind = tf.DeviceSpec.from_string(context.devices[0]).device_type
            self.program = compiled(self.program, kind)

    def explain(self, shapes: Sequence[tf.TensorShape]) -> Explanation:
        """Returns what the program exchanges, and why, for arguments of these shapes, if known."""
        lengths = {
            layout.batch: shape[0]
            for layout, shape in zip(self._layouts, shapes, strict=False)
            if isinstance(layout, Sharded) and shape[0] is not None
        }
        return explain(self.explained, lengths)


def tell(program: ReplicaProgram, warned_about: set[str]) -> None:
    """Says once of each cause what it costs that an operation is computed whole.

    Nothing is said of what leaves all products divided and has nothing sent for it.

    Args:
      program: The program.
      warned_about: The subjects that were warned about; those of which it warns are added.
    """
    report = program.report
    if report.num_replicas == 1:
        return
    products = [each for each in report.computed if each.operation in PRODUCTS]
    groups: dict[tuple[str, str, str], list[Gathered]] = {}
    for found in report.whole:
        groups.setdefault((found.operation, found.place, found.reason), []).append(found)
    for key, causes in groups.items():
        left = sum(any(each.cause is cause for cause in causes) for each in products)
        sent = [cause for cause in causes if cause.gathered]
        subject = " ".join(key)
        if not (left or sent) or subject in warned_about:
            continue
        warned_about.add(subject)
        after = (
            f"With it each computes all of {left} of the step's {len(products)} products, "
            f"{words.percent(left / len(products))}, which are divided otherwise. "
            if left
            else "The step's products stay divided. "
        )
        logging.getLogger("tfdp").warning(
            "%s in %s is computed by each replica for the whole batch%s. %s%s",
            *(causes[0].operation, causes[0].place, _sent(sent, program.batches), after),
            _remedy(causes[0]),
        )


def _sent(causes: Sequence[Gathered], batches: Sequence[Batch]) -> str:
    """Says what is sent for operations in each step."""
    if not causes:
        return ""
    sizes = [cause.gathered_bytes for cause in causes]
    for batch in batches:
        each = [divided(size, batch.length) for size in sizes]
        if all(isinstance(size, int) for size in each):
            return f", and {words.size(sum(each))} of each example are sent for it"
    return ", and what it is given of each example is sent for it"


def _remedy(cause: Gathered) -> str:
    if cause.has_texts:
        return "To have it divided, move it into the dataset's `map`."
    return (
        "To have it divided, move it into the dataset's `map`, or write it with operations that "
        "take each example by itself."
    )
