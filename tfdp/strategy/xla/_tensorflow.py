"""The private TensorFlow names that `tfdp.strategy.xla` uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/strategy/xla/test_tensorflow.py` fails when one of them
moves.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# The class of what a function's operations are described by, which no public name tells.
from tensorflow.core.framework.node_def_pb2 import NodeDef

# The inner part of the strategy with one device, which the host is: it has no public name.
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

# Leaves graphs that no function is traced in, too, such as that of a model that is exported:
# `tf.init_scope` stays in them.
from tensorflow.python.eager.context import eager_mode

# Lowers a function by its name; public functions lower what they have traced themselves.
from tensorflow.python.eager.polymorphic_function.compiler_ir import from_concrete_function

# The declarations of operations; functions are called by names that are none of theirs.
from tensorflow.python.framework import op_def_registry

# Whether a graph is traced to be compiled: XLA has no operation that calls a program of JAX.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# The class of variables that `tf.Variable` makes outside of scopes.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfdp.partition import add_function, remove_functions
from tfdp.partition._tensorflow import kernels_of
from tfdp.strategy._tensorflow_programs import FunctionDef

__all__ = [
    "FunctionDef",
    "GraphOrParentsInXlaContext",
    "NodeDef",
    "OneDeviceExtended",
    "ResourceVariable",
    "declaration",
    "eager_mode",
    "hlo",
    "is_compiled",
    "known_by_name",
]


class _NamedOperation(NamedTuple):
    """What lowering asks of a function.

    Attributes:
      name: Its name.
      captured_inputs: What it captures.
      structured_input_signature: What it is given, if nothing else says it.
    """

    name: bytes
    captured_inputs: Sequence[tf.Tensor]
    structured_input_signature: Sequence[tf.TensorSpec]


def hlo(name: str, specs: Sequence[tf.TensorSpec], captured: Sequence[tf.Tensor]) -> bytes:
    """Returns a function lowered to HLO, as a serialized module.

    Args:
      name: Its name.
      specs: Its arguments.
      captured: What it captures.
    """
    named = _NamedOperation(name.encode(), captured, specs)
    serialized: bytes = from_concrete_function(named, list(specs))(stage="hlo_serialized")
    return serialized


@contextlib.contextmanager
def known_by_name(functions: Sequence[FunctionDef]) -> Iterator[None]:
    """Lets TensorFlow find functions by their names within the context."""
    try:
        for each in functions:
            add_function(each)
        yield
    finally:
        remove_functions([each.signature.name for each in functions])


def declaration(type_: str) -> Any:
    """Returns how a type of operations is declared: its arguments, results and attributes."""
    return op_def_registry.get(type_)


@functools.cache
def is_compiled(type_: str) -> bool:
    """Returns whether TensorFlow can lower a type of operation for XLA, or it is a function."""
    if type_ == "Placeholder" or declaration(type_) is None:
        return True
    return any(kernel.device_type == "XLA_CPU_JIT" for kernel in kernels_of(type_))
