"""Arithmetic on sizes, computed once, on the host, which alone needs it.

A GPU computes many of these few numbers in its own memory: products of sizes, and whatever is
int64. An operation that then wants a shape has the host wait until the GPU has done all that it was
given. Keras' own layers do so where a batch's length is open. A size that is cast to a float is
cast before it is copied to a GPU, which launches nothing for it.
"""

from collections.abc import Collection, Mapping

import tensorflow as tf

from tfdp.partition._tensorflow import FunctionDef, NodeDef
from tfdp.partition.emit.writer import HOST
from tfdp.partition.source import outputs_of
from tfdp.partition.tensors import MOST_ENTRIES

# What the host knows of any tensor.
_SHAPES = {"Rank", "Shape", "ShapeN", "Size"}

# Of int32 a GPU computes these in its own memory, too.
_ON_GPU = {
    "All",
    "Any",
    "BitwiseAnd",
    "BitwiseOr",
    "Cast",
    "Cumprod",
    "Cumsum",
    "DynamicStitch",
    "GatherNd",
    "GatherV2",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Prod",
    "Select",
    "SelectV2",
}

# Of int32 a GPU has the host's memory for these.
_BESIDE_GPU = {
    "Abs",
    "AddV2",
    "BroadcastArgs",
    "BroadcastGradientArgs",
    "ConcatOffset",
    "ConcatV2",
    "Equal",
    "ExpandDims",
    "Fill",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Identity",
    "Less",
    "LessEqual",
    "Max",
    "Maximum",
    "Min",
    "Minimum",
    "Mul",
    "Neg",
    "NotEqual",
    "Pack",
    "Range",
    "Reshape",
    "Slice",
    "Squeeze",
    "StridedSlice",
    "Sub",
    "Sum",
    "Unpack",
}


def move(function: FunctionDef, sizes: Collection[str]) -> None:
    """Writes equal sizes of a function once, and puts operations on the host.

    Those that wait for other operations stay where they are: the host would wait, too. So does what
    is made of constants alone, unless it is wanted there: TensorFlow makes one constant of it, and
    to have the host's on a GPU would take a copy in each step.

    Args:
      function: The function.
      sizes: The arguments that are sizes, by their names.
    """
    _merge(function, sizes)
    known = set(sizes)
    constants: dict[str, NodeDef] = {}
    fixed: dict[str, NodeDef] = {}  # what is made of constants alone
    moved: list[NodeDef] = []
    casts: dict[str, list[NodeDef]] = {}
    for node in function.node_def:  # what an operation needs is written before it
        if _is_small_constant(node):
            constants[node.name] = node
            known.add(node.name)
        elif node.op in _SHAPES:
            known.add(node.name)
        elif _is_arithmetic(node, known):
            known.add(node.name)
            if _is_fixed(node, constants | fixed):
                fixed[node.name] = node
            elif node.op in _ON_GPU or any(dtype == tf.int64 for *_, dtype in outputs_of(node)):
                moved.append(node)
        elif _is_cast(node, known) and not _is_fixed(node, constants | fixed):
            casts.setdefault(node.input[0], []).append(node)
    # A GPU that takes a size in two dtypes has it copied once, and casts it.
    moved.extend(each for each, *others in casts.values() if not others)
    for node in moved:  # what they want is moved after them
        wanted = [fixed.pop(each.partition(":")[0], None) for each in node.input]
        moved.extend(each for each in wanted if each is not None)
    of_host: dict[str, NodeDef] = {}
    for node in moved:
        node.device = HOST
        for index, each in enumerate(node.input):
            name, colon, output = each.partition(":")
            if name not in constants:
                continue
            if name not in of_host:
                of_host[name] = NodeDef()
                of_host[name].CopyFrom(constants[name])
                of_host[name].name, of_host[name].device = f"{name}/on_host", HOST
            node.input[index] = f"{of_host[name].name}{colon}{output}"
    if of_host:
        nodes = [*of_host.values(), *function.node_def]  # what is needed comes first
        del function.node_def[:]
        function.node_def.extend(nodes)


def _merge(function: FunctionDef, sizes: Collection[str]) -> None:
    """Leaves out what computes the same of sizes as an operation before it."""
    known, instead = set(sizes), dict[str, str]()
    firsts: dict[bytes, str] = {}
    left_out = []
    for number, node in enumerate(function.node_def):
        for index, each in enumerate(node.input):
            node.input[index] = _renamed(each, instead)
        if _is_small_constant(node) or node.op in _SHAPES:
            known.add(node.name)
            continue
        is_size = _is_arithmetic(node, known)
        if is_size:
            known.add(node.name)
        if is_size or _is_cast(node, known):
            alike = NodeDef()
            alike.CopyFrom(node)
            alike.ClearField("name")
            alike.ClearField("experimental_debug_info")
            first = firsts.setdefault(alike.SerializeToString(deterministic=True), node.name)
            if first != node.name:
                instead[node.name] = first
                left_out.append(number)
    for number in reversed(left_out):
        del function.node_def[number]
    for returned in (function.ret, function.control_ret):
        for key, each in list(returned.items()):
            returned[key] = _renamed(each, instead)


def _renamed(name: str, instead: Mapping[str, str]) -> str:
    """Returns an operation's input, of the operation that stands for the one that is named."""
    control, operation = name[: name.startswith("^")], name.removeprefix("^")
    operation, colon, output = operation.partition(":")
    return f"{control}{instead.get(operation, operation)}{colon}{output}"


def _is_fixed(node: NodeDef, fixed: Collection[str]) -> bool:
    return all(each.partition(":")[0] in fixed for each in node.input)


def _is_cast(node: NodeDef, known: Collection[str]) -> bool:
    """Returns whether an operation casts a size to a float."""
    return (
        node.op == "Cast"
        and not node.device
        and all(each.partition(":")[0] in known for each in node.input)
        and tf.as_dtype(node.attr["DstT"].type).is_floating
    )


def _is_arithmetic(node: NodeDef, known: Collection[str]) -> bool:
    if node.device or node.op not in _ON_GPU | _BESIDE_GPU or not node.input:
        return False
    are_integers = all(dtype.is_integer or dtype.is_bool for _, _, dtype in outputs_of(node))
    return are_integers and all(each.partition(":")[0] in known for each in node.input)


def _is_small_constant(node: NodeDef) -> bool:
    if node.op != "Const":
        return False
    dtype = tf.as_dtype(node.attr["dtype"].type)
    shape = tf.TensorShape(node.attr["value"].tensor.tensor_shape)
    return (dtype.is_integer or dtype.is_bool) and (shape.num_elements() or 0) <= MOST_ENTRIES
