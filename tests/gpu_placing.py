"""Places a traced step as TensorFlow would on GPUs, without one, and counts the copies.

A step that was traced on logical CPUs is taken for one on GPUs: the first CPU is the host, and each
other one a GPU. Which operations a GPU has kernels of, and which of their arguments these keep in
the host's memory, is a table, `gpu_kernels.json`, which `gpu_kernels.py` makes from the build of
TensorFlow for GPUs. Where what a GPU has made is wanted in the host's memory, the host waits until
the GPU has done all that it was given. What is made of constants alone is a constant where it is
placed, and is copied to no GPU in a step.
"""

import dataclasses
import json
import pathlib

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager.context import context
from tensorflow.python.framework import op_def_registry

TABLE = pathlib.Path(__file__).with_name("gpu_kernels.json")
HOST = "host"
# The host has these however they are placed.
OF_HOST = {tf.string.as_datatype_enum, tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
LOOPS = {"While", "StatelessWhile"}
# A branch with one of these is not taken by a step like all others: Python makes another program,
# or the data's end is raised.
SELDOM = {"EagerPyFunc", "IteratorGetNext"}
# What gives a variable's memory, or its argument's.
STILL = {
    *("Bitcast", "Const", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "NoOp"),
    *("OptionalGetValue", "PreventGradient", "ReadVariableOp", "Reshape", "Squeeze"),
    *("StopGradient", "VarHandleOp"),
}


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor: what made it, where, and in whose memory it is."""

    name: str
    device: str = HOST
    is_on_gpu: bool = False
    is_constant: bool = False


def signature(node):
    """The type of an operation, with the dtypes that it has."""
    declared = op_def_registry.get(node.op)
    found = [node.op]
    for attr in declared.attr:
        if attr.type == "type":
            dtypes = [node.attr[attr.name].type]
        elif attr.type == "list(type)":
            dtypes = sorted(set(node.attr[attr.name].list.type))
        else:
            continue
        found.append(f"{attr.name}={','.join(tf.as_dtype(each).name for each in dtypes)}")
    return " ".join(found)


def read():
    """The table: by the signature a GPU's kernel, as the arguments it has in the host's memory."""
    return json.loads(TABLE.read_text())


def refused(concrete, everywhere=False):
    """The collectives of a traced function that TensorFlow refuses on GPUs, each with its dtype.

    Such an error ends all collectives of a process. The table has what TensorFlow's build for GPUs
    says it refuses.

    Args:
      concrete: The concrete function; the first logical CPU is the host.
      everywhere: Whether each device is a GPU.
    """
    types = json.loads(TABLE.read_text())["refused"]
    definition, found = concrete.graph.as_graph_def(), []
    library = {each.signature.name: each for each in definition.library.function}

    def look(nodes, device):
        for node in nodes:
            spec = tf.DeviceSpec.from_string(node.device or device)
            name = tf.as_dtype(node.attr["T"].type).name if node.attr["T"].type else None
            if (everywhere or spec.device_index) and name in types.get(node.op, ()):
                found.append(f"{node.op} of {name}")
            for attr in (each.func.name for each in node.attr.values() if each.func.name):
                if attr not in library and context().has_function(attr):
                    library[attr] = context().get_function_def(attr)
                look(library[attr].node_def, node.device or device)

    look(definition.node, "")
    return found


class Placing:
    """What a step does where.

    Args:
      kernels: By signatures the kernels of a GPU, None where it has none; asked by `[]`.

    Attributes:
      copies: What is copied from a GPU to the host, by names, each with what wants it there.
      uploads: What is copied from the host to a GPU, by names and GPUs, each with what wants it.
      launches: The names of the operations that a GPU runs.
      seen: The nodes of all signatures that were placed on a GPU.
    """

    def __init__(self, kernels):
        self._kernels = kernels
        self.copies, self.uploads, self.launches, self.seen = {}, {}, [], {}

    def of(self, concrete):
        """Places a concrete function; returns itself."""
        definition = concrete.graph.as_graph_def()
        self._library = {each.signature.name: each for each in definition.library.function}
        given = {}
        outer = dict(
            zip(
                [each.name for each in concrete.graph.internal_captures],
                concrete.graph.external_captures,
                strict=True,
            )
        )
        for tensor in concrete.graph.inputs:
            device = getattr(outer.get(tensor.name), "device", "")
            where = self._device(device, None) if device else None
            given[tensor.name] = Made(tensor.name, where or HOST)
        nodes = [each for each in definition.node if f"{each.name}:0" not in given]
        self._run(nodes, given, "", None)
        return self

    def _device(self, text, inherited):
        spec = tf.DeviceSpec.from_string(text)
        if spec.device_type is None:
            return inherited
        return f"gpu {spec.device_index - 1}" if spec.device_index else HOST

    def _run(self, nodes, given, prefix, inherited):
        made = dict(given)
        for node in _in_order(nodes):
            inputs = [
                made.get(each if ":" in each else f"{each}:0", Made(each))
                for each in node.input
                if not each.startswith("^")
            ]
            for index, output in enumerate(self._placed(node, inputs, prefix, inherited)):
                made[f"{node.name}:{index}"] = output
        return made

    def _placed(self, node, inputs, prefix, inherited):
        where, name = self._device(node.device, inherited), prefix + node.name
        if node.op in CALLS:
            return self._called(node.attr["f"].func.name, inputs, name, where)
        if self._function(node.op) is not None:
            return self._called(node.op, inputs, name, where)
        if node.op in BRANCHES:
            condition, *given = inputs
            self._wanted_on_host(condition, name)
            taken = [node.attr[each].func.name for each in BRANCHES[node.op]]
            often = [each for each in taken if not self._is_seldom(each)]
            found = [self._called(each, given, f"{name}/{each}", where) for each in often or taken]
            # On a GPU if a branch gives it there.
            return [max(each, key=lambda one: one.is_on_gpu) for each in zip(*found, strict=True)]
        if node.op in LOOPS:
            found = self._called(node.attr["body"].func.name, inputs, f"{name}/body", where)
            goes_on = self._called(node.attr["cond"].func.name, found, f"{name}/cond", where)
            self._wanted_on_host(goes_on[0], name)
            return found
        return self._operation(node, inputs, name, where)

    def _operation(self, node, inputs, name, where):
        declared = op_def_registry.get(node.op)
        taken, given = (
            _arguments(each, node) for each in (declared.input_arg, declared.output_arg)
        )
        if node.op == "Placeholder":
            return [Made(name)]
        for tensor, (_, dtype) in zip(inputs, taken, strict=True):
            if dtype == tf.resource.as_datatype_enum:  # it is where its resource is
                where = tensor.device
        if where is None:
            on_gpus = [each.device for each in inputs if each.is_on_gpu]
            where = on_gpus[0] if on_gpus else "gpu 0"
        of_host = None
        if where != HOST:
            self.seen[signature(node)] = node
            of_host = self._kernels[signature(node)]
            if of_host is None:
                where = HOST
        is_constant = not declared.is_stateful and all(each.is_constant for each in inputs)
        for tensor, (argument, dtype) in zip(inputs, taken, strict=True):
            if is_constant:
                continue
            if where == HOST or argument in of_host or dtype in OF_HOST:
                self._wanted_on_host(tensor, name)
            elif not (tensor.is_on_gpu or tensor.is_constant):
                self.uploads.setdefault((tensor.name, where), name)
        outputs = [
            Made(
                f"{name}:{index}",
                where,
                where != HOST and argument not in of_host and dtype not in OF_HOST,
                is_constant,
            )
            for index, (argument, dtype) in enumerate(given)
        ]
        if any(each.is_on_gpu for each in outputs) and node.op not in STILL and not is_constant:
            self.launches.append(name)
        return outputs

    def _wanted_on_host(self, tensor, name):
        if tensor.is_on_gpu:
            self.copies.setdefault(tensor.name, name)

    def _function(self, name):
        if name not in self._library and context().has_function(name):
            self._library[name] = context().get_function_def(name)
        return self._library.get(name)

    def _is_seldom(self, name):
        called = {each.op for each in self._function(name).node_def}
        return bool(called & SELDOM)

    def _called(self, function, inputs, prefix, inherited):
        definition = self._function(function)
        names = [each.name for each in definition.signature.input_arg]
        given = {f"{name}:0": each for name, each in zip(names, inputs, strict=True)}
        numbers = {}
        for node in definition.node_def:
            numbers.update(self._numbered(node))
        nodes = []
        for node in definition.node_def:
            nodes.append(NodeDef())
            nodes[-1].CopyFrom(node)
            nodes[-1].input[:] = [numbers.get(each, each) for each in node.input]
        made = self._run(nodes, given, f"{prefix}/", inherited)
        returned = [definition.ret[each.name] for each in definition.signature.output_arg]
        returned = [numbers.get(each, each) for each in returned]
        return [made[each if ":" in each else f"{each}:0"] for each in returned]

    def _numbered(self, node):
        """A function's names of a node's outputs, with those that graphs have for them."""
        if node.op in CALLS | LOOPS | BRANCHES.keys():
            attr = node.attr["T" if node.op in LOOPS else "Tout"]
            count = len(attr.list.type)
            return {f"{node.name}:output:{each}": f"{node.name}:{each}" for each in range(count)}
        function = self._function(node.op)
        if function is not None:
            names = [(each.name, None) for each in function.signature.output_arg]
        else:
            names = _arguments(op_def_registry.get(node.op).output_arg, node)
        found, before = {}, {}
        for index, (name, _) in enumerate(names):
            before[name] = before.get(name, -1) + 1
            found[f"{node.name}:{name}:{before[name]}"] = f"{node.name}:{index}"
        return found


def _arguments(declared, node):
    """Name and dtype of each tensor that an operation takes, or gives."""
    found = []
    for argument in declared:
        if argument.type_list_attr:
            dtypes = list(node.attr[argument.type_list_attr].list.type)
        else:
            dtype = node.attr[argument.type_attr].type if argument.type_attr else argument.type
            dtypes = [dtype] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
        found += [(argument.name, dtype) for dtype in dtypes]
    return found


def _in_order(nodes):
    """The nodes, each after those it needs."""
    by_name, done = {each.name: each for each in nodes}, {}
    for node in nodes:
        stack = [(node, False)]
        while stack:
            each, is_ready = stack.pop()
            if is_ready:
                done.setdefault(each.name, each)
            elif each.name not in done:
                stack.append((each, True))
                needed = {one.lstrip("^").partition(":")[0] for one in each.input}
                stack += [(by_name[one], False) for one in needed if one in by_name]
    return list(done.values())
