"""Some of the operations of a flattened program, written into another graph."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition.flattening import Task, Wire
from tfdp.partition.source import SourceOp

# What is known of a value before a program runs: its dtype and shape, and all of it, or None.
Known = tuple[tf.TensorSpec, Any]


def operation(task: Task) -> SourceOp:
    """Returns the operation of a task that stands for one, as all do but for the arguments'."""
    assert task.op is not None
    return task.op


class Piece:
    """Operations of a program, whose other values are given.

    Args:
      graph: The graph of the program, which has the functions that they call.
      tasks: The operations, each after those that it needs.

    Attributes:
      given: What they use and do not give themselves, each with a name.
    """

    def __init__(self, graph: tf.Graph, tasks: Sequence[Task]) -> None:
        self._tasks, self._names = tasks, {}
        taken: set[str] = set()
        for task in tasks:
            name = operation(task).name
            while name in taken:
                name = f"{operation(task).name}_{len(taken)}"
            taken.add(name)
            self._names[task] = name
        self.given: dict[Wire, str] = {}
        self._definition = tf.compat.v1.GraphDef()
        self._definition.node.extend(map(self._node, tasks))
        definition = graph.as_graph_def()
        self._definition.library.CopyFrom(definition.library)
        self._definition.versions.CopyFrom(definition.versions)

    def write(self, given: Mapping[Wire, tf.Tensor], outputs: Iterable[Wire]) -> list[tf.Tensor]:
        """Writes the operations into the graph that is being built, and returns these outputs.

        Args:
          given: What they do not give themselves, tensors of that graph.
          outputs: What is returned: outputs of the operations, or what is given.
        """
        wires = list(outputs)
        own = [wire for wire in wires if wire not in given]
        found = tf.graph_util.import_graph_def(
            self._definition,
            {name: given[wire] for wire, name in self.given.items()},
            [self._name(wire) for wire in own],
            name="",
        )
        made = dict(zip(own, found, strict=True))
        return [given[wire] if wire in given else made[wire] for wire in wires]

    def known(
        self, given: Mapping[Wire, tf.TensorSpec], values: Mapping[Wire, tf.Tensor]
    ) -> dict[Wire, Known]:
        """Returns what is known of each output of the operations, and of what is given.

        Args:
          given: The specifications of what they do not give themselves.
          values: What is given of known values.
        """
        wires = [(task, i) for task in self._tasks for i in range(len(operation(task).outputs))]
        with tf.Graph().as_default():
            own = {
                wire: tf.compat.v1.placeholder(spec.dtype, spec.shape)
                for wire, spec in given.items()
                if wire in self.given
            }
            own |= {wire: tf.constant(value.numpy()) for wire, value in values.items()}
            wires += values
            made = self.write(own, wires)
            found = {}
            for wire, tensor in zip(wires, made, strict=True):
                # What layers have told of shapes is in the trace alone.
                traced = operation(wire[0]).outputs[wire[1]].shape
                shape = tensor.shape
                if traced.is_compatible_with(shape):
                    shape = shape.merge_with(traced)
                value = None if tensor.dtype == tf.string else tf.get_static_value(tensor)
                found[wire] = tf.TensorSpec(shape, tensor.dtype), value
            return found

    def _node(self, task: Task) -> tf.compat.v1.NodeDef:
        node = tf.compat.v1.NodeDef()
        node.CopyFrom(operation(task).node)
        node.name = self._names[task]
        del node.input[:]
        node.input.extend(map(self._name, task.inputs))
        waits = dict.fromkeys(self._names[each] for each in task.controls if each in self._names)
        node.input.extend(f"^{name}" for name in waits)
        return node

    def _name(self, wire: Wire) -> str:
        task, index = wire
        if task in self._names:
            return f"{self._names[task]}:{index}"
        return self.given.setdefault(wire, f"tfdp_given_{len(self.given)}:0")
