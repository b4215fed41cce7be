"""The private names of TensorFlow that the adapter uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/keras_adapter/test_hooks.py` fails when one of them moves.
"""

import sys

import tensorflow as tf

# The class of a replica's context, which holds its strategy.
from tensorflow.python.distribute.distribute_lib import ReplicaContextBase

# The declaration of values of several replicas.
from tensorflow.python.distribute.values import PerReplicaSpec

# The test whether a tape may record operations on given tensors.
from tensorflow.python.eager.record import could_possibly_record

# The test whether TensorFlow orders an operation after the last one with side effects. A graph's
# `experimental_acd_manager` gives the order, and its `run_independently` excepts an operation.
from tensorflow.python.framework.auto_control_deps import op_is_stateful

# The resources that an operation reads, and those that it may write, as TensorFlow orders them.
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

# The graph of a function that is being traced, which tells the tensors it captures.
from tensorflow.python.framework.func_graph import FuncGraph

# The callbacks on eager operations, of which nothing else keeps a record.
from tensorflow.python.framework.op_callbacks import add_op_callback, remove_op_callback

# The loop that runs a function for all elements at once, in `tf.vectorized_map` and jacobians.
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from tfdp.hooks import Attribute, method

# An order between two existing operations: `tf.control_dependencies` orders new ones only.
add_control_input = method(tf.Operation, "_add_control_input")

# The loop or branch of TensorFlow 1 that an operation is in.
control_flow_context = Attribute(tf.Operation, "_control_flow_context")

# The function that a graph holds by a name.
function_named = method(tf.Graph, "_get_function")

# The specifications of the single replicas' values.
value_specs = Attribute(PerReplicaSpec, "_value_specs")

# The strategy of a replica's context, whose property cannot be set, and the thread mode that holds
# the strategy as well.
strategy_of_context = Attribute(ReplicaContextBase, "_strategy")
thread_mode = Attribute(ReplicaContextBase, "_thread_context")

# The functions, and their modules, in which `tf.recompute_grad` computes again, and a tape goes
# backward: TensorFlow keeps no flag of either.
_AGAIN = ("tensorflow.python.ops.custom_gradient", "inner_recompute_grad")
_BACKWARD = ("tensorflow.python.eager.imperative_grad", "imperative_grad")


def is_computed_again() -> bool:
    """Returns whether the caller is part of a forward pass that `tf.recompute_grad` repeats.

    What a tape calls in its backward pass, such as a gradient of a user's own, is called once.
    """
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name in (_AGAIN[1], _BACKWARD[1]):
            where = (frame.f_globals.get("__name__"), frame.f_code.co_name)
            if where in (_AGAIN, _BACKWARD):
                return where == _AGAIN
    return False


__all__ = [
    "FuncGraph",
    "PerReplicaSpec",
    "add_control_input",
    "add_op_callback",
    "control_flow_context",
    "could_possibly_record",
    "function_named",
    "get_read_write_resource_inputs",
    "is_computed_again",
    "op_is_stateful",
    "parallel_for",
    "remove_op_callback",
    "strategy_of_context",
    "thread_mode",
    "value_specs",
]
