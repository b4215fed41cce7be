"""Every private TensorFlow name that the adapter uses, each with its reason.

Tested with TensorFlow 2.21.0. `tests/keras_adapter/test_hooks.py` fails when one of them moves.
"""

# Whether a tape is watching what is done with gradients.
from tensorflow.python.eager.record import could_possibly_record

# Whether TensorFlow orders an operation after the last one with side effects. A graph's
# `experimental_acd_manager` does it, and its `run_independently` excepts an operation.
from tensorflow.python.framework.auto_control_deps import op_is_stateful

# Which resources an operation reads, and which it may write, as TensorFlow orders them.
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

# The graph of a function that is being traced: it tells what it took from outside.
from tensorflow.python.framework.func_graph import FuncGraph

# What was computed eagerly is known only to those who listen.
from tensorflow.python.framework.op_callbacks import add_op_callback, remove_op_callback

# What runs a function for all elements at once: `tf.vectorized_map`, and a tape's jacobians.
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

__all__ = [
    "FuncGraph",
    "add_op_callback",
    "could_possibly_record",
    "get_read_write_resource_inputs",
    "op_is_stateful",
    "parallel_for",
    "remove_op_callback",
]
