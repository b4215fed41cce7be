"""The private TensorFlow names that the strategy uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/strategy/test_tensorflow.py` fails when one of them moves.
"""

from collections.abc import Sequence

import tensorflow as tf

# `tf.init_scope` stops tapes, also those that are made within it; there is no public way to go on.
from tensorflow.python import pywrap_tfe

# `tf.autograph.to_graph` converts once and for all; `tf_convert` follows the caller's context.
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert

# Computes the batch size that a dataset declares where its `element_spec` does not show it.
from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

# Makes the iterators that fetch the shares of each device.
from tensorflow.python.data.ops import multi_device_iterator_ops

# Sums values of several devices on one of them without a collective.
from tensorflow.python.distribute.cross_device_ops import ReductionToOneDevice

# A program is traced as on one device in the mode of the default strategy's only replica.
from tensorflow.python.distribute.distribute_lib import (
    _get_default_replica_mode as default_replica_mode,
)
from tensorflow.python.distribute.distribute_lib import _pop_per_thread_mode as pop_thread_mode
from tensorflow.python.distribute.distribute_lib import _push_per_thread_mode as push_thread_mode

# Tells which replica's copy of a variable `extended.update` updates.
from tensorflow.python.distribute.distribute_lib import get_update_replica_id

# These make a scope's variables, and put together the values of one process' replicas.
from tensorflow.python.distribute.distribute_utils import (
    VARIABLE_POLICY_MAPPING,
    create_mirrored_variable,
    regroup,
)

# TensorFlow's iterator over the replicas' shares and its dataset, extended by `share_iterators`
# and `share_datasets`.
from tensorflow.python.distribute.input_lib import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
)

# The first gives a dataset's elements to the replicas in turn, without cutting them up again; the
# second makes one dataset for each process, by a function.
from tensorflow.python.distribute.input_util import (
    get_distributed_dataset,
    get_distributed_datasets_from_function,
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
    SyncOnReadVariable,
)

# The runtime, with which functions are registered.
from tensorflow.python.eager.context import context

# Takes the initial value of a variable out of the function that makes it.
from tensorflow.python.eager.lift_to_graph import lift_to_graph

# `tf.function`'s own clone keeps the options of a function that `run` is given.
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

# Whether a tape records, which would go back through a partitioned function, and its pause.
from tensorflow.python.eager.record import could_possibly_record, stop_recording

# The type and shape of the variable that a handle outside of graphs stands for.
from tensorflow.python.framework.ops import EagerTensor

# Tells whether a graph is being compiled by XLA, which has no collective on CPU.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# Within the first, variables with copies stand for their first ones, as while a model is saved.
from tensorflow.python.saved_model.save_context import SaveContext, save_context
from tensorflow.python.saved_model.save_context import _save_context as saving_state
from tensorflow.python.saved_model.save_options import SaveOptions

# The initial value of a variable that is restored from a checkpoint.
from tensorflow.python.trackable.base import CheckpointInitialValue

from tfdp.hooks import Attribute

# What is known of the variable that a handle stands for.
handle_data = Attribute(EagerTensor, "_handle_data")

# Whether the calling thread is in `save_context`.
is_saving = Attribute(SaveContext, "_in_save_context")

# The functions that make a graph's variables.
variable_creators = Attribute(tf.Graph, "_variable_creator_stack")

# The variable with copies that a copy's handle is one of, as a weak reference.
container_of_copy = "_distributed_container"


def add_function(definition: object) -> None:
    """Registers a function with the runtime."""
    context().add_function_def(definition)


def remove_functions(names: Sequence[str]) -> None:
    """Takes functions out of the runtime."""
    for name in names:
        if context().has_function(name):
            context().remove_function(name)


__all__ = [
    "VARIABLE_POLICY_MAPPING",
    "CheckpointInitialValue",
    "DistributedDataset",
    "DistributedDatasetSpec",
    "DistributedIterator",
    "DistributedIteratorSpec",
    "DistributedValues",
    "DistributedVariable",
    "Function",
    "GraphOrParentsInXlaContext",
    "Mirrored",
    "MirroredExtended",
    "MirroredVariable",
    "ReductionToOneDevice",
    "SaveOptions",
    "SingleDevice",
    "SyncOnReadVariable",
    "add_function",
    "compute_batch_size",
    "container_of_copy",
    "control_status_ctx",
    "could_possibly_record",
    "create_mirrored_variable",
    "default_replica_mode",
    "get_distributed_dataset",
    "get_distributed_datasets_from_function",
    "get_update_replica_id",
    "handle_data",
    "is_saving",
    "lift_to_graph",
    "multi_device_iterator_ops",
    "pop_thread_mode",
    "push_thread_mode",
    "pywrap_tfe",
    "regroup",
    "remove_functions",
    "save_context",
    "saving_state",
    "stop_recording",
    "tf_convert",
    "variable_creators",
]
