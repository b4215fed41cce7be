"""The private TensorFlow names that `tfdp.xla` uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/xla/test_tensorflow.py` fails when one of them moves.
"""

import functools

import tensorflow as tf

# The inner part of the strategy with one device, which the host is: it has no public name.
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

# Leaves graphs that no function is traced in, too, such as that of a model that is exported:
# `tf.init_scope` stays in them. The context has the functions that a graph may call by name.
from tensorflow.python.eager.context import context, eager_mode

# The declarations of operations; functions are called by names that are none of theirs.
from tensorflow.python.framework import op_def_registry

# The kernels of an operation, by the type of the device.
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

# Whether a graph is traced to be compiled: XLA has no operation that calls a program of JAX.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# The class of variables that `tf.Variable` makes outside of scopes.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = [
    "GraphOrParentsInXlaContext",
    "OneDeviceExtended",
    "ResourceVariable",
    "context",
    "eager_mode",
    "is_compiled",
]


@functools.cache
def is_compiled(type_: str) -> bool:
    """Returns whether TensorFlow can lower a type of operation for XLA, or it is a function."""
    if type_ == "Placeholder" or op_def_registry.get(type_) is None:
        return True
    _register_kernels()
    kernels = get_registered_kernels_for_op(type_).kernel
    return any(kernel.device_type == "XLA_CPU_JIT" for kernel in kernels)


@functools.cache
def _register_kernels() -> None:
    """Has TensorFlow declare what it can lower, which it does when it first lowers something."""
    lowered = tf.function(lambda x: x, jit_compile=True, autograph=False)
    lowered.experimental_get_compiler_ir(tf.TensorSpec([]))(stage="hlo_serialized")
