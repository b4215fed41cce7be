"""Operations of a step that TensorFlow lowers slowly: once for all that are alike.

TensorFlow (2.19 to 2.21) has a compiler of its own, MLIR's, lower some types of operations. It is
made anew for each: 4 ms, where other operations take 0.1, and a step with Adam has two square roots
for each weight. Such operations become calls of a function that has one, which TensorFlow lowers
once for all calls of a shape. In the lowered module each call gives way to what it calls: it has
the same operations, of which some stand elsewhere.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.strategy.xla._jax import ir, operations_of
from tfdp.strategy.xla._tensorflow import FunctionDef, NodeDef, declaration, known_by_name

# What the names of functions of one operation begin with, and those of what is added.
_NAME, _ONE, _BRANCH = "tfdp_alike", "tfdp_one", "tfdp_branch"

# Which branch is taken: of one it is that one, whatever the number, by which constants are found
# that are left of it.
_NUMBER = 0x7FDA11CE

# What TensorFlow 2.21 lowers so, of what neural networks compute with, where it has one result.
_SLOW = frozenset(
    (
        *("Abs", "BiasAddGrad", "Ceil", "Cos", "Exp", "Expm1", "Floor", "IsFinite", "IsInf"),
        *("IsNan", "Log1p", "LogSoftmax", "PreventGradient", "Reciprocal", "Relu", "Relu6"),
        *("ReluGrad", "Rsqrt", "Select", "Sigmoid", "Sign", "Softmax", "Sqrt", "Tanh"),
    )
)

# Operations whose results XLA knows. What is computed of these alone may be a size, and stays.
_KNOWN = ("Const", "Rank", "Shape", "ShapeN", "Size")


@contextlib.contextmanager
def lowered_once(function: FunctionDef) -> Iterator[str]:
    """Yields the name of a function that does the same, in which slow operations are calls.

    Args:
      function: A function that TensorFlow has.
    """
    copy = FunctionDef()
    copy.CopyFrom(function)
    copy.signature.name += "_of_calls"
    with known_by_name([*_called(copy), copy]):
        yield copy.signature.name


def inline_cases(module: Any) -> None:
    """Writes what cases of one branch compute in their place, as such calls are lowered."""
    for case in operations_of(module, ["stablehlo.case"]):
        if len(case.regions) == 1:
            *operations, returned = [each.operation for each in case.regions[0].blocks[0]]
            for operation in operations:
                if operation.name == "stablehlo.reshape" and _is_as_given(operation):
                    (given,) = operation.operands  # as results are written
                    operation.results[0].replace_all_uses_with(given)
                else:
                    operation.move_before(case)
            for result, value in zip(case.results, returned.operands, strict=True):
                result.replace_all_uses_with(value)
            branch = case.operands[0]
            case.erase()
            _erase_unused(branch)
    for each in operations_of(module, ["stablehlo.constant"]):
        is_one = str(each.results[0].type) == "tensor<i32>"  # of complex numbers Python has none
        if not is_one or list(each.results[0].uses):  # a user may have this number, too
            continue
        if str(each.attributes["value"]) == f"dense<{_NUMBER}> : tensor<i32>":
            each.erase()
    for each in list(module.body.operations):  # copies of what was in the cases
        if ir.StringAttr(each.operation.attributes["sym_name"]).value.startswith(_NAME):
            each.operation.erase()


def _is_as_given(operation: Any) -> bool:
    given: bool = operation.operands[0].type == operation.results[0].type
    return given


def _erase_unused(value: Any) -> None:
    """Erases the number of a branch, which nothing reads any more: a constant, and its shape.

    Of a case that is the user's another operation may give it, which stays for XLA to drop.
    """
    while not isinstance(value.owner, ir.Block) and not list(value.uses):
        owner = value.owner
        if owner.name not in ("stablehlo.broadcast_in_dim", "stablehlo.constant"):
            return
        operands = list(owner.operands)
        owner.erase()
        if not operands:
            return
        (value,) = operands


def _called(function: FunctionDef) -> list[FunctionDef]:
    """Makes calls of a function's slow operations, and returns the functions that are called.

    A call is a case of one branch: TensorFlow inlines others before it lowers what is in them.
    """
    found: dict[str, FunctionDef] = {}
    renamed: dict[str, str] = {}
    known = set()
    for node in function.node_def:
        given = [each for each in node.input if not each.startswith("^")]
        if node.op in _KNOWN or (given and all(each.split(":")[0] in known for each in given)):
            known.add(node.name)
        elif node.op in _SLOW:
            attributes = {name: attr for name, attr in node.attr.items() if name[0] != "_"}
            alike = node.op + str(sorted((name, str(attr)) for name, attr in attributes.items()))
            if alike not in found:
                name = f"{_NAME}_{len(found)}_of_{function.signature.name}"
                found[alike] = _of_one(node, name)
            renamed[found[alike].ret["result"].replace(_ONE, node.name)] = f"{node.name}:output:0"
            _call(node, found[alike])
    if found:
        branch = function.node_def.add(name=_BRANCH, op="Const")
        branch.attr["dtype"].type = tf.int32.as_datatype_enum
        branch.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_NUMBER))
    for node in function.node_def:
        node.input[:] = [renamed.get(each, each) for each in node.input]
    for name, result in function.ret.items():
        function.ret[name] = renamed.get(result, result)
    return list(found.values())


def _of_one(node: NodeDef, name: str) -> FunctionDef:
    """Returns a function, of this name, of what an operation is given, that has one like it."""
    declared = declaration(node.op)
    function = FunctionDef()
    function.signature.name = name
    one = function.node_def.add(name=_ONE, op=node.op)
    for key, attr in node.attr.items():
        if key[0] != "_":  # such as the shape of its result
            one.attr[key].CopyFrom(attr)
    for each in declared.input_arg:
        function.signature.input_arg.add(name=each.name, type=_type(each, node))
        one.input.append(each.name)
    (result,) = declared.output_arg
    function.signature.output_arg.add(name="result", type=_type(result, node))
    function.ret["result"] = f"{_ONE}:{result.name}:0"
    return function


def _type(declared: Any, node: NodeDef) -> int:
    """Returns the type of an argument or result of an operation, by its declaration."""
    found: int = declared.type or node.attr[declared.type_attr].type
    return found


def _call(node: NodeDef, called: FunctionDef) -> None:
    """Makes of an operation the call of a function."""
    for name in called.node_def[0].attr:
        del node.attr[name]
    node.op = "StatelessCase"
    node.input.insert(0, f"{_BRANCH}:output:0")
    node.attr["branches"].list.func.add(name=called.signature.name)
    node.attr["Tin"].list.type.extend(each.type for each in called.signature.input_arg)
    node.attr["Tout"].list.type.extend(each.type for each in called.signature.output_arg)
