"""The private TensorFlow names that the partitioner uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/partition/test_tensorflow.py` fails when one of them moves.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The messages in which TensorFlow keeps a function and its operations: the partitioner writes them.
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

# The runtime, which functions are registered with.
from tensorflow.python.eager.context import context

# The declarations of operations: how many outputs of which dtypes they have.
from tensorflow.python.framework import op_def_registry

# The graph of a traced function.
from tensorflow.python.framework.func_graph import FuncGraph

# Makes a graph of a function that TensorFlow has as a message alone, as older code of its own does.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

# The kernels of an operation, by the type of the device.
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

# The number that stands for nothing known of a tensor list's elements, or a tensor, in messages.
from tensorflow.python.framework.tensor_util import make_tensor_proto

from tfdp.base.hooks import method

# The function that a graph holds by a name.
function_named = method(tf.Graph, "_get_function")


@functools.cache
def kernels_of(type_: str) -> Sequence[Any]:
    """Returns the declarations of the kernels of an operation, XLA's too."""
    _register_kernels()
    return get_registered_kernels_for_op(type_).kernel


@functools.cache
def _register_kernels() -> None:
    """Lets TensorFlow register XLA's kernels, as it does when it first compiles."""
    with tf.init_scope():  # a graph that is being built would only be given a call
        tf.function(lambda: tf.constant(0), jit_compile=True)()


__all__ = [
    "AttrValue",
    "FuncGraph",
    "FunctionDef",
    "NodeDef",
    "context",
    "function_def_to_graph",
    "function_named",
    "kernels_of",
    "make_tensor_proto",
    "op_def_registry",
]
