"""Texts that tell whether ranks traced the same program, and where theirs part."""

import hashlib
from collections.abc import Iterator

import tensorflow as tf

from tfdp.partition.source import SourceGraph, SourceOp

# Names that a process counts up by itself, and seeds of draws that the first replica makes.
_OF_A_PROCESS = frozenset(
    ("config_proto", "container", "executor_type", "seed", "seed2", "shared_name", "token")
)


def operations_of(source: SourceGraph) -> Iterator[SourceOp]:
    """Yields the operations of a program; after each those of the functions that it calls."""
    for op in source.ops:
        yield op
        for name in sorted(op.node.attr):  # a message's own order is another in each process
            value = op.node.attr[name]
            if value.HasField("func"):
                yield from operations_of(op.function(name))
            for called in value.list.func:
                yield from operations_of(source.function(called.name))


def text_of(op: SourceOp) -> str:
    """Returns the type of an operation with a few digits of what it does, alike on all ranks.

    Numbers that the program holds are told apart, texts are not: those may be a rank's own paths.

    >>> graph = tf.function(lambda x: x + 1).get_concrete_function(tf.ones([3])).graph
    >>> [text_of(op).partition("#")[0] for op in SourceGraph(graph).ops]
    ['Placeholder', 'Const', 'AddV2', 'Identity']
    """
    digest = hashlib.sha256()
    for tensor in op.inputs:
        digest.update(f"{tensor.op.number}:{tensor.index} ".encode())
    is_text = op.type == "Const" and op.outputs[0].dtype == tf.string
    for name in sorted(op.node.attr):
        value = op.node.attr[name]
        is_function = value.HasField("func") or value.list.func
        if not (is_function or name in _OF_A_PROCESS or (is_text and name == "value")):
            digest.update(name.encode() + value.SerializeToString(deterministic=True))
    return f"{op.type}#{digest.hexdigest()[:6]}"
