"""Programs of replicas as functions that TensorFlow can call, one for each local replica."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from tfdp.partition._tensorflow import FunctionDef, context
from tfdp.partition.partitioning import ReplicaProgram


class Registered:
    """A program, registered for each local replica on its device.

    TensorFlow places an operation without a device by itself, and where functions are nested it
    takes the first device of the process. So each operation of a replica's copy names its own.

    Args:
      program: The program.
      devices: The devices of the local replicas.
      options: How the functions that it calls are optimized, a serialized `ConfigProto`.

    Attributes:
      program: The program.
      names: The function's name for each local replica.
    """

    def __init__(self, program: ReplicaProgram, devices: Sequence[str], options: bytes) -> None:
        self.program = program
        self.names: list[str] = []
        registered: list[str] = []
        for index, device in enumerate(devices):
            renamed = {
                function.signature.name: f"{function.signature.name}_on_{index}"
                for function in program.functions
            }
            self.names.append(renamed[program.name])
            for name, collective in program.collectives.items():
                renamed[name] = collective.names[index]
            for function in program.functions:
                copy = on_device(function, device, renamed, options)
                context().add_function_def(copy)
                registered.append(copy.signature.name)
        # The functions of the collectives live as long as the program, which holds them.
        weakref.finalize(self, _remove, registered)


def on_device(
    function: FunctionDef, device: str, renamed: Mapping[str, str], options: bytes = b""
) -> FunctionDef:
    """Returns a copy of a function on a device; it, and what it calls, under other names.

    Functions that it calls are optimized with the `options`, a serialized `ConfigProto`.
    """
    copy = FunctionDef()
    copy.CopyFrom(function)
    copy.signature.name = renamed[function.signature.name]
    for node in copy.node_def:
        node.device = device
        if options and node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            node.attr["config_proto"].s = options
        for attr in node.attr.values():
            kind = attr.WhichOneof("value")
            if kind == "func":
                attr.func.name = renamed.get(attr.func.name, attr.func.name)
            elif kind == "list":
                for called in attr.list.func:
                    called.name = renamed.get(called.name, called.name)
    return copy


def _remove(names: Sequence[str]) -> None:
    for name in names:
        if context().has_function(name):
            context().remove_function(name)
