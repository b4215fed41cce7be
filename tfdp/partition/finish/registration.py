"""Programs of replicas as functions that TensorFlow can call, one for each local replica."""

import weakref
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdp.partition._tensorflow import FunctionDef, context
from tfdp.partition.emit.writer import HOST
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
    """

    def __init__(self, program: ReplicaProgram, devices: Sequence[str], options: bytes) -> None:
        self.program = program
        self._devices, self._options = devices, options
        self._called = [each for each in program.functions if each.signature.name != program.name]
        (self._main,) = (each for each in program.functions if each.signature.name == program.name)
        self._names: dict[bool, list[str]] = {}
        self._registered: list[str] = []
        for index in range(len(devices)):
            for function in self._called:
                self._register(function, index, self._renamed(index, inlined=False))
        # The functions of the collectives live as long as the program, which holds them.
        weakref.finalize(self, remove_functions, self._registered)

    def names(self, *, inlined: bool) -> list[str]:
        """Returns the function's name for each local replica.

        Args:
          inlined: Whether its collectives are inlined, see `Collective`; not those of functions
            that it calls, which may be a loop's.
        """
        if inlined not in self._names:
            suffix = "_inlined" if inlined else ""
            found = []
            for index in range(len(self._devices)):
                renamed = self._renamed(index, inlined=inlined)
                renamed[self.program.name] += suffix
                self._register(self._main, index, renamed)
                found.append(renamed[self.program.name])
            self._names[inlined] = found
        return self._names[inlined]

    def _renamed(self, index: int, *, inlined: bool) -> dict[str, str]:
        found = {
            function.signature.name: f"{function.signature.name}_on_{index}"
            for function in self.program.functions
        }
        for name, collective in self.program.collectives.items():
            found[name] = (collective.inlined if inlined else collective.names)[index]
        return found

    def _register(self, function: FunctionDef, index: int, renamed: Mapping[str, str]) -> None:
        copy = on_device(function, self._devices[index], renamed, self._options)
        add_function(copy)
        self._registered.append(copy.signature.name)


def on_device(
    function: FunctionDef, device: str, renamed: Mapping[str, str], options: bytes = b""
) -> FunctionDef:
    """Returns a copy of a function on a device; it, and what it calls, under other names.

    What was written for the host is on the device's. Functions that it calls are optimized with
    the `options`, a serialized `ConfigProto`.
    """
    copy = FunctionDef()
    copy.CopyFrom(function)
    copy.signature.name = renamed[function.signature.name]
    for node in copy.node_def:
        node.device = host_of(device) if node.device == HOST else device
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


def host_of(device: str) -> str:
    """Returns the device of a replica's host that computes on sizes and flags.

    A GPU would have to finish all that it was given before it told one. A CPU is its own host.
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return spec.replace(device_type="CPU", device_index=0).to_string()


def add_function(function: FunctionDef) -> None:
    """Lets the runtime call a function by its name."""
    context().add_function_def(function)


def remove_functions(names: Sequence[str]) -> None:
    """Takes functions out of the runtime, of those that are there."""
    for name in names:
        if context().has_function(name):
            context().remove_function(name)
