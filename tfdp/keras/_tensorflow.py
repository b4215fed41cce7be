"""The private names of TensorFlow that the adapter uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/keras/test_hooks.py` fails when one of them moves.
"""

import tensorflow as tf

# The class of a replica's context, which holds its strategy.
from tensorflow.python.distribute.distribute_lib import ReplicaContextBase

# Values of several replicas, and the declaration of them.
from tensorflow.python.distribute.values import PerReplica, PerReplicaSpec

# The test whether TensorFlow orders an operation after the last one with side effects. A graph's
# `experimental_acd_manager` gives the order, and its `run_independently` excepts an operation.
from tensorflow.python.framework.auto_control_deps import op_is_stateful

# The resources that an operation reads, and those that it may write, as TensorFlow orders them.
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from tfdp.base.hooks import Attribute, method

# An order between two existing operations: `tf.control_dependencies` orders new ones only.
add_control_input = method(tf.Operation, "_add_control_input")

# The loop or branch of TensorFlow 1 that an operation is in.
control_flow_context = Attribute(tf.Operation, "_control_flow_context")

# The specifications of the single replicas' values.
value_specs = Attribute(PerReplicaSpec, "_value_specs")

# The strategy of a replica's context, whose property cannot be set, and the thread mode that holds
# the strategy as well.
strategy_of_context = Attribute(ReplicaContextBase, "_strategy")
thread_mode = Attribute(ReplicaContextBase, "_thread_context")

__all__ = [
    "PerReplica",
    "PerReplicaSpec",
    "add_control_input",
    "control_flow_context",
    "get_read_write_resource_inputs",
    "op_is_stateful",
    "strategy_of_context",
    "thread_mode",
    "value_specs",
]
