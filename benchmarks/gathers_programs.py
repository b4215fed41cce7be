"""Programs of `benchmarks gathers`, and what each of them sends beyond gradients."""

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf

import tfdp
from benchmarks import partitioners_programs
from benchmarks.gathers import LENGTH, REPLICAS, Sent
from tfdp.partition import Batch, Exchanged, ReplicaProgram, purposes
from tfdp.partition.explain.collective_order import CollectiveOrder
from tfdp.partition.sizes import evaluated
from tfdp.strategy.programs.program_build import ProgramBuild
from tfdp.strategy.programs.program_trace import ProgramTrace


def programs() -> dict[str, Callable[[tf.distribute.Strategy], Any]]:
    """Returns every program by its name: a function of a strategy."""
    # To rewrite graphs takes longer than their few steps.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    made = partitioners_programs.programs()  # which puts the tests where Python finds them
    runners: Any = importlib.import_module("programs.runners")
    for name in runners.PROGRAMS:
        made[f"partition: {name}"] = functools.partial(runners.trained, name)
    cells: Any = importlib.import_module("strategy.xla.cells")
    made |= {f"keras: {name}": run for name, run in cells.CELLS.items()}
    return made


def sent_by(name: str, run: Callable[[tf.distribute.Strategy], Any]) -> list[Sent]:
    """Runs a program on replicas, and returns what it sends beyond gradients.

    Sums that give what variables which are trained are updated with are gradients, with what
    travels with them.

    Args:
      name: Its name.
      run: The program.
    """
    strategy = tfdp.DataParallelStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    found: list[Sent] = []
    usual = ProgramBuild.__init__

    def noting(self: ProgramBuild, trace: ProgramTrace, *args: Any) -> None:
        usual(self, trace, *args)
        found.extend(_beyond_gradients(name, self.explained, trace.source))

    with mock.patch.object(ProgramBuild, "__init__", noting):
        partitioners_programs.trained(run, strategy)
    return found


def _beyond_gradients(
    name: str, program: ReplicaProgram, source: tf.types.experimental.ConcreteFunction
) -> Iterator[Sent]:
    handles = {id(each.handle) for each in source.graph.variables if each.trainable}
    trained = {index for index, each in enumerate(program.externals) if id(each[0]) in handles}
    gradients = [
        id(each)
        for bucket in purposes(program, trained).buckets
        for each in bucket
        if each.kind != "gather"
    ]
    lengths = dict.fromkeys(program.batches, LENGTH)
    order = CollectiveOrder(program)
    for exchanged, within in zip(order.collectives, order.within, strict=True):
        if id(exchanged) not in gradients:
            yield _sent(name, exchanged, within, lengths)


def _sent(name: str, exchanged: Exchanged, within: str, lengths: dict[Batch, int]) -> Sent:
    size = None if exchanged.size_bytes is None else evaluated(exchanged.size_bytes, lengths)
    known = size if isinstance(size, int) else None
    why = re.sub(r" at \S+:\d+, in \w+", "", exchanged.why)
    asked = why if why.startswith(exchanged.operation) else f"{exchanged.operation}: {why}"
    return Sent(name, exchanged.kind, asked, known, within == "loop")
