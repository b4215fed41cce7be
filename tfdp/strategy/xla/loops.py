"""Loops whose gradient keeps the same value once for each iteration, such as an LSTM's kernels.

TensorFlow's gradient of a loop keeps what the backward pass needs of each iteration in a stack. A
weight that is read in the loop is among it, and so are as many copies of it as there are time
steps: of the LSTM of `benchmarks costs`, 64 of each kernel, 128 MiB. Keras on JAX keeps none.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp.strategy.xla._jax import ir, operations_of, stablehlo

# Operations of one operand by which a kept value may be made of one that the loop leaves as it is.
_MADE_BY = ("stablehlo.reshape", "stablehlo.convert", "stablehlo.transpose")


def drop_copies_of_invariants(module: Any) -> None:
    """Has a module's backward loops take such values themselves.

    What nothing reads any more is left to XLA, which drops it. It is done where these hold:

    1. The forward loop has a counter that begins at 0 and grows by 1, and runs at least once.
    2. It writes, at the counter's row of the stack, what it is given and leaves as it is.
    3. The backward loop is given the stack, leaves it as it is, and reads the row before that of a
       counter which begins at the forward's last and shrinks.

    So each row that is read was written, by that value. XLA takes a row before the first for the
    first.
    """
    for loop in operations_of(module, ["stablehlo.while"]):
        if _runs(loop, module):
            _replace(loop)


def _replace(loop: Any) -> None:
    """Has backward loops take what a forward loop writes to stacks."""
    body = loop.regions[1].blocks[0]
    returned = list(_last(body).operands)
    for place, written in enumerate(returned):
        update = _made_by(written, "stablehlo.dynamic_update_slice")
        if update is None or _source(update.operands[0]) != body.arguments[place]:
            continue
        stack, row, *at = update.operands
        counter = _place_of(_source(at[0]), body)
        if not _is_row(row.type, stack.type) or not all(_constant(each) == 0 for each in at[1:]):
            continue
        if counter is None or _constant(loop.operands[counter]) != 0:
            continue
        if _step(returned[counter], body.arguments[counter], "stablehlo.add") is None:
            continue
        invariant, made_by = _origin(row)
        kept = _place_of(invariant, body)
        if kept is None or _source(returned[kept]) != invariant:
            continue
        for use in list(loop.results[place].uses):
            if use.owner.name == "stablehlo.while":
                value = loop.operands[kept], made_by
                _take(use.owner, use.operand_number, loop.results[counter], *value)


def _take(loop: Any, place: int, last: Any, value: Any, made_by: Sequence[Any]) -> None:
    """Has a backward loop take a value where it reads a stack."""
    body = loop.regions[1].blocks[0]
    returned = list(_last(body).operands)
    stack = body.arguments[place]
    if _source(returned[place]) != stack:
        return
    reads = []
    for use in stack.uses:
        operation = use.owner
        if operation.name != "stablehlo.dynamic_slice":
            continue
        _, row, *at = operation.operands
        step = _made_by(_source(row), "stablehlo.subtract")
        if step is None or _constant(step.operands[1]) != 1:
            continue
        counter = _place_of(_source(step.operands[0]), body)
        if counter is None:
            continue
        shrinks = _step(returned[counter], body.arguments[counter], "stablehlo.subtract")
        begins = _source(loop.operands[counter]) == last
        is_row = _is_row(operation.results[0].type, stack.type)
        if shrinks and begins and is_row and all(_constant(each) == 0 for each in at):
            reads.append(operation)
    if not reads:
        return
    with ir.InsertionPoint(loop):
        for operation in made_by:
            clone = operation.clone()
            clone.operands[0] = value
            value = clone.results[0]
    for operation in reads:
        operation.results[0].replace_all_uses_with(value)
        operation.erase()


def _origin(value: Any) -> tuple[Any, list[Any]]:
    """Returns what a value is made of, and by which operations, the first one first."""
    made_by: list[Any] = []
    while not isinstance(value.owner, ir.Block) and value.owner.name in _MADE_BY:
        made_by.insert(0, value.owner)
        value = value.owner.operands[0]
    return value, made_by


def _source(value: Any) -> Any:
    """Returns a value before it was reshaped to what it was."""
    while (owner := _made_by(value, "stablehlo.reshape")) is not None:
        if owner.operands[0].type != value.type:
            break
        value = owner.operands[0]
    return value


def _made_by(value: Any, name: str) -> Any | None:
    """Returns the operation that makes a value, if it is of this name."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != name else owner


def _place_of(value: Any, block: Any) -> int | None:
    """Returns which argument of a block a value is; None: none of them."""
    return next((at for at, each in enumerate(block.arguments) if each == value), None)


def _step(value: Any, counter: Any, name: str) -> Any | None:
    """Returns the operation by which a value is a counter and 1, or less 1."""
    operation = _made_by(_source(value), name)
    if operation is None or _source(operation.operands[0]) != counter:
        return None
    return operation if _constant(operation.operands[1]) == 1 else None


def _is_row(row: Any, stack: Any) -> bool:
    sizes, of_stack = (list(ir.RankedTensorType(kind).shape) for kind in (row, stack))
    return bool(of_stack) and sizes == [1, *of_stack[1:]]


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _constant(value: Any) -> Any | None:
    """Returns the value of a constant of one number; None: it is none."""
    owner = _made_by(_source(value), "stablehlo.constant")
    if owner is None or ir.RankedTensorType(value.type).shape:
        return None
    elements = ir.DenseElementsAttr(owner.attributes["value"])
    return np.array(elements).item() if elements.is_splat or len(elements) == 1 else None


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "LT": lambda one, other: one < other,
    "LE": lambda one, other: one <= other,
    "GT": lambda one, other: one > other,
    "GE": lambda one, other: one >= other,
    "NE": lambda one, other: one != other,
}


def _runs(loop: Any, module: Any) -> bool:
    """Returns whether constants show that a loop runs at least once."""
    condition = loop.regions[0].blocks[0]
    given = list(map(_constant, loop.operands))
    functions = {
        ir.StringAttr(each.operation.attributes["sym_name"]).value: each.operation
        for each in module.body.operations
    }
    return _evaluated(condition, given, functions) is True


def _evaluated(block: Any, given: Sequence[Any], functions: dict[str, Any]) -> Any | None:
    """Returns what a block returns of these numbers, None for unknown ones; None: it is unknown."""
    values = list(zip(block.arguments, given, strict=True))

    def known(value: Any) -> Any | None:
        return next((found for each, found in values if each == value), None)

    for each in block.operations:
        operation = each.operation
        numbers = list(map(known, operation.operands))
        name, found = operation.name, None
        if name in ("stablehlo.return", "func.return"):
            return numbers[0]
        if name == "stablehlo.constant":
            found = _constant(operation.results[0])
        elif name in ("stablehlo.reshape", "stablehlo.convert"):
            found = numbers[0]
        elif name in ("func.call", "call"):
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            found = _evaluated(functions[callee].regions[0].blocks[0], numbers, functions)
        elif None not in numbers and name == "stablehlo.and":
            found = numbers[0] and numbers[1]
        elif None not in numbers and name == "stablehlo.compare":
            how = stablehlo.ComparisonDirectionAttr(operation.attributes["comparison_direction"])
            compare = _COMPARED.get(how.value)
            found = None if compare is None else compare(*numbers)
        if found is not None:
            values.append((operation.results[0], found))
    return None
