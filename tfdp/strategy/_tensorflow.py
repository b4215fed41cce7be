"""The private TensorFlow names that the strategy uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/strategy/test_tensorflow.py` fails when one of them moves.
"""

# `tf.autograph.to_graph` converts once and for all; `tf_convert` follows the caller's context.
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert

# Sums values of several devices on one of them without a collective.
from tensorflow.python.distribute.cross_device_ops import ReductionToOneDevice

# Tells which replica's copy of a variable `extended.update` updates.
from tensorflow.python.distribute.distribute_lib import get_update_replica_id

# These make a scope's variables, and put together the values of one process' replicas.
from tensorflow.python.distribute.distribute_utils import (
    VARIABLE_POLICY_MAPPING,
    create_mirrored_variable,
    regroup,
)

# The public `StrategyExtended` lacks what TensorFlow and Keras call (`call_for_each_replica` ...).
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

# `colocate_vars_with` may name one device in this form.
from tensorflow.python.distribute.numpy_dataset import SingleDevice

# The classes behind variables and values in a scope; `tf.distribute.DistributedValues` is public.
from tensorflow.python.distribute.values import (
    DistributedValues,
    DistributedVariable,
    Mirrored,
    MirroredVariable,
    PerReplica,
    PerReplicaSpec,
    SyncOnReadVariable,
)

# `tf.function`'s own clone keeps the options of a function that `run` is given.
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

# Tells whether a graph is being compiled by XLA, which has no collective on CPU.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# A variable with a shape and without a value, which takes no memory.
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

# Tells whether a graph is made for a SavedModel, which holds no replicas.
from tensorflow.python.saved_model.save_context import in_save_context

# The initial value of a variable that is restored from a checkpoint.
from tensorflow.python.trackable.base import CheckpointInitialValue

from tfdp.base.hooks import Attribute

# How a variable's copies are read as one. Its constructor takes no mean of complex numbers.
aggregation_of_variable = Attribute(DistributedVariable, "_aggregation")

__all__ = [
    "VARIABLE_POLICY_MAPPING",
    "CheckpointInitialValue",
    "DistributedValues",
    "DistributedVariable",
    "Function",
    "GraphOrParentsInXlaContext",
    "Mirrored",
    "MirroredExtended",
    "MirroredVariable",
    "PerReplica",
    "PerReplicaSpec",
    "ReductionToOneDevice",
    "SingleDevice",
    "SyncOnReadVariable",
    "UninitializedVariable",
    "aggregation_of_variable",
    "control_status_ctx",
    "create_mirrored_variable",
    "get_update_replica_id",
    "in_save_context",
    "regroup",
    "tf_convert",
]
