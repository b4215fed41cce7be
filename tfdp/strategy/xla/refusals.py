"""Operations that XLA cannot compile, found before anything is compiled."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.errors import PartitionError
from tfdp.partition import lines_named
from tfdp.partition.flattening import CALLS
from tfdp.partition.source import SourceOp
from tfdp.strategy.xla._jax import hlo_text
from tfdp.strategy.xla._tensorflow import is_compiled
from tfdp.strategy.xla.device_variables import variable_of
from tfdp.strategy.xla.substitutes import is_stood_for

_MOVE = "Move it into the input pipeline (`dataset.map`), or train under DataParallelStrategy."

# Operations that call Python.
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")

# Operations of `tf.print`.
_PRINTING = ("StringFormat", "PrintV2")

# Operations that draw from a state that no variable holds. Each chip would draw by itself.
_HIDDEN_STATES = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "Multinomial",
)

# Operations whose values decide how many elements they give.
_OF_OPEN_SIZE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where")

# Instructions of XLA that no program may have, as they are written, and why.
_UNLIKE = {
    r"<=.* set-dimension-size": (  # of a size up to a bound
        "how many elements it gives is known only when it runs, and XLA compiles for fixed sizes. "
        "Keep the size fixed (weigh with 0 in place of a selection)."
    ),
    r" rng": "each chip would draw by itself.",
}


# What TensorFlow says of an operation that must know a value to be lowered: its name and type.
_CONSTANT = r"to node `([^`]+)` with op (\w+) must be a compile-time constant"

# What stands before the name of an operation of a function that is called.
_CALLS = r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+"


def check_trace(source: tf.types.experimental.ConcreteFunction) -> None:
    """Checks that a traced program has no operation that neither chips nor the host run for it.

    Raises:
      PartitionError: It has. Names the operation and the user's line.
    """
    for node in _nodes(source.graph):
        reason = _reason(node)
        if reason is not None:
            raise _refusal(source.graph, [node.name], node.op, reason)
    for output in source.outputs:
        if output is not None and output.dtype == tf.string:
            raise PartitionError(
                "A program of XLAStrategy must return numbers alone, but returns a text, "
                f"{_text(output)}: chips have no strings. Return it beside the program's numbers, "
                "where it is called."
            )


def check_captured(captured: Sequence[tf.Tensor], graph: tf.Graph) -> None:
    """Checks that chips can be given what a program captures.

    Args:
      captured: What it captures.
      graph: The graph in which it was traced.

    Raises:
      PartitionError: They cannot. Names the variable.
    """
    for tensor in captured:
        _check_captured(tensor, graph)


def _nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
    """Yields the operations of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def may_need_host(graph: tf.Graph) -> bool:
    """Returns whether a graph has, wherever in it, an operation that XLA may not have."""
    return any(is_of_host(node) or node.op == "DenseBincount" for node in _nodes(graph))


def is_of_host(node: tf.compat.v1.NodeDef) -> bool:
    """Returns whether XLA has not an operation: of strings, of an open size, or of no kernel."""
    has_kernel = is_compiled(node.op) or is_stood_for(node.op)
    return has_strings(node) or node.op in _OF_OPEN_SIZE or not has_kernel


def has_strings(node: tf.compat.v1.NodeDef) -> bool:
    """Returns whether an operation computes with strings.

    The text of an assertion is none of them: XLA leaves it out.
    """
    if node.op in ("Const", "Assert", "Identity", "NoOp", *CALLS):
        return False
    dtypes = [attr.type for attr in node.attr.values() if attr.WhichOneof("value") == "type"]
    lists = [attr.list.type for attr in node.attr.values() if attr.WhichOneof("value") == "list"]
    return tf.string.as_datatype_enum in (*dtypes, *(each for every in lists for each in every))


def of_strings(graph: tf.Graph, op: SourceOp) -> PartitionError:
    """Returns the error of strings that are not to be had before a step begins."""
    reason = (
        "chips have no strings, and the host computes with them only before a step, from its "
        "arguments alone. Return the numbers, and make strings of them where the program is "
        "called; or train under DataParallelStrategy."
    )
    return _refusal(graph, [op.name], op.type, reason)


def of_own_rows(places: Sequence[str]) -> PartitionError:
    """Returns the error of a process that has its own rows of what the host must have whole."""
    return PartitionError(
        "What the host computes before a step must be given whole batches, but each process reads "
        f"its own rows of a pipeline, and XLA has not {', '.join(places)}. Move the layer into the "
        "pipeline, `pipeline.map(lambda x, y: (layer(x), y))`."
    )


def _text(output: tf.Tensor) -> str:
    """Returns a text that is returned, as far as it is a constant."""
    operation = output.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    value = tf.get_static_value(operation.outputs[0])
    return operation.name if value is None else str(value)


def _reason(node: tf.compat.v1.NodeDef) -> str | None:
    if node.op in _PYTHON:
        return f"it calls Python in each step. {_MOVE}"
    if node.op in _PRINTING:
        return (
            "chips cannot print. Leave `tf.print` out, return the value or let a metric show it, "
            "or look into the step without a strategy."
        )
    if node.op in _HIDDEN_STATES:
        return (
            "it draws from a state that each chip has of its own. Draw with `keras.random` and a "
            "`keras.random.SeedGenerator`, `tf.random.Generator`, or `tf.random.stateless_normal`."
        )
    return None


def _check_captured(tensor: tf.Tensor, graph: tf.Graph) -> None:
    if tensor.dtype != tf.resource or variable_of(tensor) is not None:
        return
    names = {id(each.handle): each.name for each in graph.variables}
    if id(tensor) in names:
        raise PartitionError(
            "A program of XLAStrategy must have variables that were made in its scope, "
            f"but {names[id(tensor)]!r} was made outside. Make it in `with strategy.scope():`."
        )
    raise PartitionError(
        "A program of XLAStrategy must capture variables and tensors alone, but it captures a "
        f"resource of the host, such as a lookup table or an iterator. {_MOVE}"
    )


@contextlib.contextmanager
def explained(graph: tf.Graph) -> Iterator[None]:
    """Says of what TensorFlow cannot lower which operation it is, and the user's line."""
    try:
        yield
    except (ValueError, tf.errors.OpError) as error:
        names = re.findall(r"\{\{node ([^\s}]+)\}\}", str(error))
        kinds = re.findall(r"on XLA_CPU_JIT: (\w+)", str(error))
        said = "" if kinds else " ({})".format(str(error).split("\n", maxsplit=1)[0])
        kind = kinds[0] if kinds else "an operation"
        constant = re.search(_CONSTANT, str(error))
        if constant:
            reason = (
                "an argument, a variable or a captured tensor decides a size or an axis, which "
                "XLA must know before it runs. Give it as a number of Python."
            )
            raise _refusal(graph, [constant[1]], constant[2], reason) from None
        raise _refusal(graph, names, kind, f"XLA cannot lower it. {_MOVE}{said}") from None


def check_lowered(serialized: bytes, graph: tf.Graph) -> None:
    """Checks that a lowered program has no sizes that only its run decides, and no draws apart.

    Args:
      serialized: Its HLO, in which each instruction's name stands as it is.
      graph: The graph that it was lowered from.

    Raises:
      PartitionError: It has. Names the operation and the user's line.
    """
    if not any(name in serialized for name in (b"set-dimension-size", b"\x03rng")):
        return
    text = hlo_text(serialized)
    for pattern, reason in _UNLIKE.items():
        lines = [line for line in text.splitlines() if re.search(rf"{pattern}\(", line)]
        if not lines:
            continue
        named = [re.search(r'op_type="(\w+)" op_name="([^"]+)"', line) for line in lines]
        kind, node = next((found.groups() for found in named if found), ("an operation", ""))
        raise _refusal(graph, [node], kind, f"{reason} {_MOVE}")


def _refusal(graph: tf.Graph, names: list[str], kind: str, reason: str) -> PartitionError:
    names = [re.sub(_CALLS, "", name) for name in names]
    nodes = " ".join(f"{{{{node {name}}}}}" for name in names)
    # The scope has the names of layers, such as those of Keras, whose lines are no user's.
    scopes = [name.rpartition("/")[0] for name in names]
    where = "; ".join([*lines_named(graph, nodes)[:1], *filter(None, scopes[:1])])
    return PartitionError(
        f"A program must be one that XLA can compile, but has {kind}"
        f"{f' ({where})' if where else ''}: {reason}"
    )
