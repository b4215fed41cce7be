"""Calls in a finished program of functions that watch it: they take tensors and give nothing."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition._tensorflow import FunctionDef, NodeDef
from tfdp.partition.communicator import Collective
from tfdp.partition.emit.writer import Called, attr_value, unique_name
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.program_record import Exchanged


class Instrumentation:
    """A program that is watched.

    A call waits for what it takes and for nothing else, and nothing but the end of its function
    waits for it.

    Args:
      program: The program, which stays as it is.
    """

    def __init__(self, program: ReplicaProgram) -> None:
        self._program = program
        self._functions: dict[str, FunctionDef] = {}
        for function in program.functions:
            self._functions[function.signature.name] = FunctionDef()
            self._functions[function.signature.name].CopyFrom(function)
        self._watches: dict[int, tuple[str, Collective]] = {}

    def given(self, exchanged: Exchanged) -> list[tuple[str, tf.DType]]:
        """Returns the tensors that a collective takes of its replica, by name."""
        node, collective = self._call(exchanged)
        return list(zip(node.input, collective.dtypes, strict=False))

    def got(self, exchanged: Exchanged) -> list[tuple[str, tf.DType]]:
        """Returns the tensors that a collective gives, by name."""
        _, collective = self._call(exchanged)
        return [
            (f"{exchanged.node}:output:{index}", dtype)
            for index, dtype in enumerate(collective.dtypes)
        ]

    def call(
        self, function: str, tensors: Sequence[tuple[str, tf.DType]], watch: Collective
    ) -> None:
        """Adds a call.

        Args:
          function: The name of the function that holds the tensors.
          tensors: The tensors.
          watch: What each local replica calls, which captures nothing.
        """
        name, _ = self._watches.setdefault(id(watch), (unique_name("watch"), watch))
        within = self._functions[function]
        node = within.node_def.add()
        node.op, node.name = "StatefulPartitionedCall", unique_name("tfdp/watched")
        node.input.extend(tensor for tensor, _ in tensors)
        attrs = {
            "Tin": [dtype for _, dtype in tensors],
            "Tout": [],
            "f": Called(name),
            "config": "",
            "config_proto": "",
            "executor_type": "",
        }
        for key, value in attrs.items():
            node.attr[key].CopyFrom(attr_value(value))
        within.signature.control_output.append(node.name)
        within.control_ret[node.name] = node.name

    def finish(self) -> ReplicaProgram:
        return dataclasses.replace(
            self._program,
            functions=list(self._functions.values()),
            collectives={**self._program.collectives, **dict(self._watches.values())},
        )

    def _call(self, exchanged: Exchanged) -> tuple[NodeDef, Collective]:
        nodes = self._functions[exchanged.function].node_def
        (node,) = (node for node in nodes if node.name == exchanged.node)
        return node, self._program.collectives[node.attr["f"].func.name]
