"""The private TensorFlow names by which the strategy traces and calls programs of one device.

Tested with TensorFlow 2.19-2.21. `tests/strategy/test_tensorflow_programs.py` fails when one of
them moves.
"""

import tensorflow as tf

# Functions as the runtime knows them.
from tensorflow.core.framework.function_pb2 import FunctionDef

# By which a `tf.function` takes equal arguments as one: the first keeps them alive, as methods that
# are made as they are asked for, the second does not.
from tensorflow.core.function.trace_type.default_types import Literal, Weakref

# How the runtime is asked to optimize functions.
from tensorflow.core.protobuf.config_pb2 import ConfigProto

# `tf.init_scope` stops tapes, also those that are made within it; there is no public way to go on.
from tensorflow.python import pywrap_tfe

# AutoGraph converts a function or not by the status of the context that it is traced in.
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

# A program is traced as on one device in the mode of the default strategy's only replica.
from tensorflow.python.distribute.distribute_lib import (
    _get_default_replica_mode as default_replica_mode,
)
from tensorflow.python.distribute.distribute_lib import _pop_per_thread_mode as pop_thread_mode
from tensorflow.python.distribute.distribute_lib import _push_per_thread_mode as push_thread_mode

# The runtime, with which functions are registered, and how it optimizes what it is given. Its seeds
# can be set anew by public functions, but not restored.
from tensorflow.python.eager.context import FunctionCallOptions, context

# Takes the initial value of a variable out of the function that makes it.
from tensorflow.python.eager.lift_to_graph import lift_to_graph

# Whether a tape records, which would go back through a partitioned function, and its pause.
from tensorflow.python.eager.record import could_possibly_record, stop_recording

# The class of the handles of variables that are in no graph.
from tensorflow.python.framework.ops import EagerTensor

# What `lift_to_graph` raises where a value depends on a function's arguments.
from tensorflow.python.ops.op_selector import UnliftableError

# Says that a graph reads a variable: tapes watch those of a function that is called.
from tensorflow.python.ops.resource_variable_ops import variable_accessed

# Within the first, variables with copies stand for their first ones, as while a model is saved.
from tensorflow.python.saved_model.save_context import SaveContext, save_context
from tensorflow.python.saved_model.save_context import _save_context as saving_state
from tensorflow.python.saved_model.save_options import SaveOptions

from tfdp.base.hooks import Attribute

# What is known of the variable that a handle stands for.
handle_data = Attribute(EagerTensor, "_handle_data")

# A tensor's sizes as a tuple, in a fifth of the time that its `shape` takes.
shape_of = EagerTensor._shape_tuple

# Whether the calling thread is in `save_context`.
is_saving = Attribute(SaveContext, "_in_save_context")

# The functions that make a graph's variables.
variable_creators = Attribute(tf.Graph, "_variable_creator_stack")

# The variable with copies that a copy's handle is one of, as a weak reference.
container_of_copy = "_distributed_container"

__all__ = [
    "ConfigProto",
    "ControlStatusCtx",
    "EagerTensor",
    "FunctionCallOptions",
    "FunctionDef",
    "Literal",
    "SaveContext",
    "SaveOptions",
    "Status",
    "UnliftableError",
    "Weakref",
    "container_of_copy",
    "context",
    "could_possibly_record",
    "default_replica_mode",
    "handle_data",
    "is_saving",
    "lift_to_graph",
    "pop_thread_mode",
    "push_thread_mode",
    "pywrap_tfe",
    "save_context",
    "saving_state",
    "shape_of",
    "stop_recording",
    "variable_accessed",
    "variable_creators",
]
