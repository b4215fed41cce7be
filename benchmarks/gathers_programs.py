"""Programs of `benchmarks gathers`, and what each of them sends beyond gradients."""

from __future__ import annotations

import contextlib
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
from tfdp.partition import Batch, ReplicaProgram, purposes
from tfdp.partition.dependencies import Dependencies, Position
from tfdp.partition.sizes import evaluated
from tfdp.strategy.traces import Trace

_Made = tuple[ReplicaProgram, tf.types.experimental.ConcreteFunction]


def programs() -> dict[str, Callable[[tf.distribute.Strategy], Any]]:
    """Returns every program by its name: a function of a strategy."""
    made = partitioners_programs.programs()  # which puts the tests where Python finds them
    training: Any = importlib.import_module("partition.training")
    importlib.import_module("partition.test_programs")
    for name in training.PROGRAMS:
        made[f"partition: {name}"] = functools.partial(_partitioned, training, name)
    cells: Any = importlib.import_module("xla.cells")
    made |= {f"keras: {name}": run for name, run in cells.CELLS.items()}
    return made


def _partitioned(training: Any, name: str, strategy: tf.distribute.Strategy) -> None:
    training.trained(name, strategy)


def sent_by(name: str, run: Callable[[tf.distribute.Strategy], Any]) -> list[Sent]:
    """Runs a program on replicas, and returns what it sends beyond gradients.

    Sums that give what variables which are trained are updated with are gradients, with what
    travels with them.

    Args:
      name: Its name.
      run: The program.
    """
    strategy = tfdp.DataParallelStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    with _programs_noted() as noted:
        partitioners_programs.trained(run, strategy)
    found = []
    for program, source in noted:
        handles = {id(each.handle) for each in source.graph.variables if each.trainable}
        which = {index for index, each in enumerate(program.externals) if id(each[0]) in handles}
        gradients = [
            id(each)
            for bucket in purposes(program, which).buckets
            for each in bucket
            if each.kind != "gather"
        ]
        for position in Dependencies(program).collectives:
            if id(position.exchanged) not in gradients:
                found.append(_sent(name, position, dict.fromkeys(program.batches, LENGTH)))
    return found


def _sent(name: str, position: Position, lengths: dict[Batch, int]) -> Sent:
    exchanged = position.exchanged
    size = None if exchanged.size_bytes is None else evaluated(exchanged.size_bytes, lengths)
    known = size if isinstance(size, int) else None
    why = re.sub(r" at \S+:\d+, in \w+", "", exchanged.why)
    asked = why if why.startswith(exchanged.operation) else f"{exchanged.operation}: {why}"
    return Sent(name, exchanged.kind, asked, known, position.within == "loop")


@contextlib.contextmanager
def _programs_noted() -> Iterator[list[_Made]]:
    """Notes every program that replicas are given."""
    noted: list[_Made] = []
    usual = Trace.calls_of

    def noting(self: Trace, *args: Any, **kwargs: Any) -> Any:
        calls = usual(self, *args, **kwargs)
        noted.append((calls.program, self.source))
        return calls

    with mock.patch.object(Trace, "calls_of", noting):
        yield noted
