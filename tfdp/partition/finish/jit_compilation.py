"""XLA compiles what lies between a program's collectives.

XLA's CPU and GPU compilers know nothing of the collectives of TensorFlow, so a program as a whole
is not compiled. Its operations are numbered by the *phase* in which they can run: one more than
that of each operation they need, through one that is not compiled. Those of a phase become one
function that XLA compiles, and no function needs, by way of others, what it gives.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from tfdp.partition._tensorflow import FunctionDef, NodeDef, kernels_of, op_def_registry
from tfdp.partition.emit.writer import attr_value, attrs_of_compiled, called, unique_name
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.source import outputs_of

# Of fewer operations a call costs more than it saves.
SMALLEST = 4

# XLA has kernels of these, but their results have sizes that no shape tells, or they fail or print.
# Of loops it refuses some, such as that of CTC's gradient (TensorFlow 2.21).
_LOOPS = frozenset({"StatelessWhile", "While"})
_NOT_COMPILED = _LOOPS | frozenset(
    {
        "Assert",
        "CheckNumerics",
        "CheckNumericsV2",
        "ListDiff",
        "NoOp",
        "NonMaxSuppressionV3",
        "NonMaxSuppressionV4",
        "Print",
        "Unique",
        "UniqueV2",
        "UniqueWithCounts",
        "Where",
    }
)

# What the types of operations that draw are called. XLA draws other numbers from the same seeds.
_DRAWS = ("Random", "TruncatedNormal", "Multinomial", "Shuffle")

_NO_NUMBERS = frozenset(each.as_datatype_enum for each in (tf.resource, tf.variant, tf.string))

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def compiled(program: ReplicaProgram, device_type: str) -> ReplicaProgram:
    """Returns the program with functions that XLA compiles in place of its operations.

    Variables, texts, lists of tensors, loops, draws from a hidden state, and what XLA has no kernel
    of stay outside of them. Of loops the draws alone are compiled, so that they are those of one
    device that compiles. A function is compiled at its first call, and again for each other shape
    of its inputs; and for each other value of a place, which in a loop would be at each pass.

    Args:
      program: The program.
      device_type: The type of the devices that it runs on, such as "CPU".
    """
    with_kernels = _Kernels(f"XLA_{device_type}_JIT", program)
    functions = program.functions
    inside = _within(functions, lambda node: _must_compile(node) or with_kernels.has(node))
    looping = _within(functions, lambda node: node.op in _LOOPS)
    found: list[FunctionDef] = []
    for function in functions:
        if function.signature.name in inside:
            found.append(function)
        elif function.signature.name in looping:
            found += _Clusters(function, with_kernels.has_draw).written()
        else:
            found += _Clusters(function, with_kernels.has).written()
    return dataclasses.replace(program, functions=found)


def _within(functions: Sequence[FunctionDef], calls: Callable[[NodeDef], bool]) -> Collection[str]:
    """Returns the names of the functions that some operations call, and of those that they call."""
    nodes = {function.signature.name: function.node_def for function in functions}
    every = (node for within in nodes.values() for node in within)
    found = [name for node in every if calls(node) for name in called(node)]
    for name in found:  # which grows
        inner = {each for node in nodes.get(name, ()) for each in called(node)}
        found.extend(inner.difference(found))
    return set(found)


class _Kernels:
    """Which operations XLA compiles on a device.

    Args:
      device_type: The type of the device, as XLA registers its kernels.
      program: The program, whose functions branches and loops call.
    """

    def __init__(self, device_type: str, program: ReplicaProgram) -> None:
        self._device_type = device_type
        self._functions = {each.signature.name: each for each in program.functions}
        self._known: dict[str, bool] = {}

    def has(self, node: NodeDef) -> bool:
        """Returns whether XLA compiles the operation, and all that it calls."""
        if node.op in _NOT_COMPILED or node.op in _CALLS:
            return False
        declared = op_def_registry.get(node.op)
        if _draws(node) and declared.is_stateful:
            return False
        kinds = {arg.type for arg in (*declared.input_arg, *declared.output_arg)}
        for attr in node.attr.values():
            kinds |= {attr.type, *attr.list.type}
        if kinds & _NO_NUMBERS:
            return False
        if not any(self._takes(kernel, node) for kernel in kernels_of(node.op)):
            return False
        return all(self._compiles(name) for name in called(node))

    def has_draw(self, node: NodeDef) -> bool:
        """Returns whether the operation draws numbers, and XLA compiles it."""
        return _draws(node) and self.has(node)

    def _takes(self, kernel: object, node: NodeDef) -> bool:
        return kernel.device_type == self._device_type and all(  # type: ignore[attr-defined]
            node.attr[constraint.name].type in constraint.allowed_values.list.type
            for constraint in kernel.constraint  # type: ignore[attr-defined]
            if node.attr[constraint.name].type
        )

    def _compiles(self, name: str) -> bool:
        if name not in self._known:
            function = self._functions.get(name)
            self._known[name] = function is not None and all(
                node.op in ("Const", "NoOp") or self.has(node) for node in function.node_def
            )
        return self._known[name]


class _Clusters:
    """The operations of a function, parted into those that are compiled together and the others.

    Args:
      function: The function; what an operation needs is written before it.
      compiles: Tells which operations are compiled.
    """

    def __init__(self, function: FunctionDef, compiles: Callable[[NodeDef], bool]) -> None:
        self._function = function
        self._nodes = {node.name: node for node in function.node_def}
        self._dtypes = {arg.name: arg.type for arg in function.signature.input_arg}
        for node in function.node_def:
            for name, index, dtype in outputs_of(node):
                self._dtypes[f"{node.name}:{name}:{index}"] = dtype.as_datatype_enum
        by_phase: dict[int, list[NodeDef]] = {}
        for node, phase in self._phases(compiles).items():
            by_phase.setdefault(phase, []).append(self._nodes[node])
        self._calls = [
            (f"compiled_{phase}", nodes)
            for phase, nodes in sorted(by_phase.items())
            if len(nodes) >= SMALLEST or any(map(_draws, nodes))
        ]
        self._call_of = {node.name: name for name, nodes in self._calls for node in nodes}

    def written(self) -> list[FunctionDef]:
        """Returns the functions that are compiled, and the function that calls them."""
        if not self._calls:
            return [self._function]
        found, calls = [], []
        renamed: dict[str, str] = {}
        needed = self._needed_outside()
        for name, nodes in self._calls:
            function, inputs = self._compiled(nodes, needed)
            outputs = function.signature.output_arg
            for index, arg in enumerate(outputs):
                renamed[function.ret[arg.name]] = f"{name}:output:{index}"
            waited = (each for node in nodes for each in node.input if each.startswith("^"))
            others = {self._control(each) for each in waited} - {f"^{name}"}
            calls.append((name, function, inputs, sorted(others)))
            found.append(function)
        outer = FunctionDef()
        outer.CopyFrom(self._function)
        del outer.node_def[:]
        for node in self._function.node_def:
            if node.name not in self._call_of:
                outer.node_def.add().CopyFrom(node)
                self._rewire(outer.node_def[-1], renamed)
        for name, function, inputs, controls in calls:
            call = outer.node_def.add(name=name, op="PartitionedCall", input=[*inputs, *controls])
            self._rewire(call, renamed)
            for key, value in attrs_of_compiled(function).items():
                call.attr[key].CopyFrom(attr_value(value))
        for key, value in self._function.ret.items():
            outer.ret[key] = renamed.get(value, value)
        self._rewire_effects(outer)
        return [*found, outer]

    def _phases(self, compiles: Callable[[NodeDef], bool]) -> dict[str, int]:
        phases: dict[str, int] = {}
        compiled: set[str] = set()
        after_compiled: set[str] = set()
        for node in self._function.node_def:
            if node.op == "Const":
                continue
            needs = [self._owner(each) for each in node.input]
            needs = [each for each in needs if each in phases]
            depends = [each for each in needs if each in compiled or each in after_compiled]
            if compiles(node) and (depends or _draws(node) or not self._is_of_integers(node)):
                compiled.add(node.name)
                phases[node.name] = max(
                    (phases[each] + (each in after_compiled) for each in needs), default=0
                )
                continue
            phases[node.name] = max((phases[each] for each in needs), default=0)
            if depends:
                after_compiled.add(node.name)
        return {name: phases[name] for name in phases if name in compiled}

    def _is_of_integers(self, node: NodeDef) -> bool:
        """Returns whether all it takes and gives are integers: sizes and places, that is."""
        tensors = [each for each in node.input if not each.startswith("^")]
        tensors += [f"{node.name}:{name}:{index}" for name, index, _ in outputs_of(node)]
        dtypes = {tf.as_dtype(self._dtypes[each]) for each in tensors}
        return all(dtype.is_integer or dtype.is_bool for dtype in dtypes)

    def _needed_outside(self) -> set[str]:
        """Returns the tensors that others than those compiled together with them need."""
        found = set(self._function.ret.values())
        for node in self._function.node_def:
            own = self._call_of.get(node.name)
            for each in node.input:
                maker = self._owner(each)
                if self._call_of.get(maker) != own or own is None:
                    found.add(each)
        return found

    def _compiled(
        self, nodes: Sequence[NodeDef], needed: set[str]
    ) -> tuple[FunctionDef, Sequence[str]]:
        """Returns a function of some operations, and the tensors that it takes."""
        made = FunctionDef()
        made.signature.name = unique_name("compiled")
        made.attr["_noinline"].b = True
        own = {node.name for node in nodes}
        inputs: dict[str, str] = {}
        constants: dict[str, None] = {}
        for node in nodes:
            copy = made.node_def.add()
            copy.CopyFrom(node)
            copy.ClearField("input")
            copy.device = ""  # XLA's
            for each in node.input:
                maker = self._owner(each)
                if each.startswith("^"):
                    continue
                if maker in self._nodes and self._nodes[maker].op == "Const":
                    constants[maker] = None
                elif maker not in own:
                    each = inputs.setdefault(each, f"input_{len(inputs)}")
                copy.input.append(each)
        for name in constants:
            constant = made.node_def.add()
            constant.CopyFrom(self._nodes[name])
            constant.ClearField("input")
            constant.device = ""
        for each, argument in inputs.items():
            made.signature.input_arg.add(name=argument, type=self._dtypes[each])
        for node in nodes:
            for name, index, dtype in outputs_of(node):
                tensor = f"{node.name}:{name}:{index}"
                if tensor in needed:
                    output = f"output_{len(made.signature.output_arg)}"
                    made.signature.output_arg.add(name=output, type=dtype.as_datatype_enum)
                    made.ret[output] = tensor
        return made, list(inputs)

    def _rewire(self, node: NodeDef, renamed: Mapping[str, str]) -> None:
        """Lets an operation take what the compiled functions give."""
        tensors = [renamed.get(each, each) for each in node.input if not each.startswith("^")]
        waits = dict.fromkeys(self._control(each) for each in node.input if each.startswith("^"))
        node.ClearField("input")
        node.input.extend([*tensors, *waits])

    def _rewire_effects(self, outer: FunctionDef) -> None:
        """Lets the function wait for the compiled functions whose operations it waited for."""
        names = [self._call_of.get(each, each) for each in self._function.control_ret.values()]
        outer.signature.ClearField("control_output")
        outer.ClearField("control_ret")
        for name in sorted(set(names)):
            outer.signature.control_output.append(name)
            outer.control_ret[name] = name

    def _control(self, each: str) -> str:
        return f"^{self._call_of.get(each[1:], each[1:])}"

    @staticmethod
    def _owner(tensor: str) -> str:
        return tensor[1:] if tensor.startswith("^") else tensor.partition(":")[0]


def _draws(node: NodeDef) -> bool:
    return any(name in node.op for name in _DRAWS)


def _must_compile(node: NodeDef) -> bool:
    return "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b
