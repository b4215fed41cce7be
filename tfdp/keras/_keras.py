"""The private names of Keras that the adapter uses, each with its reason.

Tested with Keras 3.11-3.15. `tests/keras/test_hooks.py` fails when a function changes.
"""

import keras

# The variable class: `keras.Variable` is the same object, but its module is needed for the backend.
from keras.src.backend.common import global_state

# The mask that a tensor carries from layer to layer, and to the loss.
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.tensorflow import nn, numpy
from keras.src.backend.tensorflow.core import Variable

# The reduction of gradients and the variables for accumulation.
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.layers.layer import Layer

# The functions that write and load files: `Model.save`, the callbacks, `load_model` and
# `load_weights` call them by name, also where a script has imported these before tfdp.
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random import seed_generator
from keras.src.random.seed_generator import SeedGenerator
from keras.src.saving import saving_lib

# The losses of a model's outputs, which are logged one by one where there are several.
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

# The function that adds `class_weight` to batches.
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

# The function `print_msg`, with which Keras says where it has saved.
from keras.src.utils import io_utils

# The function that makes Python's numbers of what a step logs.
from keras.src.utils.python_utils import pythonify_logs

# The name in the global state of the seed that was set, which no public function restores.
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

from tfdp.base.hooks import Attribute, method

# The name in the global state of the generator that draws without a seed use. Keras has a constant
# for the name since 3.13, and writes the same string out before.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

# The name there of the counts by which Keras names layers.
NAME_COUNTS = "object_name_uids"

# All layers inside a layer, after the layer itself; `model.layers` lists the outermost only.
flatten_layers = method(Layer, "_flatten_layers")

# The function that builds a model, its losses, metrics and optimizer of a batch's shapes.
build_of_shapes = method(TensorFlowTrainer, "_maybe_symbolic_build")

# What a layer itself holds: the public lists hold inner layers' as well.
own_state = Attribute(Layer, "_non_trainable_variables")

# The axes that batch normalization averages over, which follow from its `axis`.
reduction_axes = Attribute(keras.layers.BatchNormalization, "_reduction_axes")

# The strategy that a model, or an iterator, was made under, whatever scope is open now.
strategy_of_model = Attribute(TensorFlowTrainer, "_distribute_strategy")
strategy_of_iterator = Attribute(TFEpochIterator, "_distribute_strategy")

# The dataset behind an iterator over shares: `fit` builds the model from what it declares.
distributed_dataset = Attribute(TFEpochIterator, "_distributed_dataset")

# The strategy that an optimizer was made under, and the variables that it was built for.
strategy_of_optimizer = Attribute(TFOptimizer, "_distribution_strategy")
variables_of_optimizer = Attribute(BaseOptimizer, "_trainable_variables")

# The moving averages of `use_ema`, in the order of the variables.
averages_of_optimizer = Attribute(BaseOptimizer, "_model_variables_moving_average")

# The accumulated gradients. Keras' own `build` has the list while it makes them, and is built then.
accumulators_of_optimizer = Attribute(BaseOptimizer, "_accumulated_gradients")

# How often an optimizer was applied. Its public `iterations` counts windows of gradients.
iterations_of_optimizer = Attribute(BaseOptimizer, "_iterations")

# TensorFlow's variable behind one of Keras; what the public `value` gives may be cast.
value_of_variable = Attribute(Variable, "_value")

# How the names of graphs begin that Keras builds to learn shapes alone, and never runs.
SCRATCH_GRAPH = "scratch_graph"

# The key by which an optimizer knows a variable, Keras' or TensorFlow's, or a replica's copy of it.
key_of_variable = method(TFOptimizer, "_var_key")

# TensorFlow's variable behind one of Keras, which is replaced where replicas hold parts of it.
value_of_variable = Attribute(Variable, "_value")

# The update of several variables, which calls `update_step` for each.
backend_update_step = method(TFOptimizer, "_backend_update_step")

# The schedule itself: `optimizer.learning_rate` is its present value.
rate_of_optimizer = Attribute(BaseOptimizer, "_learning_rate")

# The files in which BackupAndRestore keeps weights and epoch, and the epoch and batch it is at.
weights_path = Attribute(keras.callbacks.BackupAndRestore, "_weights_path")
metadata_path = Attribute(keras.callbacks.BackupAndRestore, "_training_metadata_path")
weights_path_before = Attribute(keras.callbacks.BackupAndRestore, "_prev_weights_path")
metadata_path_before = Attribute(keras.callbacks.BackupAndRestore, "_prev_training_metadata_path")
epoch_of_backup = Attribute(keras.callbacks.BackupAndRestore, "_current_epoch")
batch_of_backup = Attribute(keras.callbacks.BackupAndRestore, "_last_batch_seen")

# When the progress bar has shown something last.
last_update_of_bar = Attribute(keras.utils.Progbar, "_last_update")

__all__ = [
    "GLOBAL_RANDOM_SEED",
    "GLOBAL_SEED_GENERATOR",
    "NAME_COUNTS",
    "SCRATCH_GRAPH",
    "ArrayDataAdapter",
    "BaseOptimizer",
    "CompileLoss",
    "EpochIterator",
    "KerasVariable",
    "LossScaleOptimizer",
    "SeedGenerator",
    "TFEpochIterator",
    "TFOptimizer",
    "TensorFlowTrainer",
    "Trainer",
    "Variable",
    "accumulators_of_optimizer",
    "averages_of_optimizer",
    "backend_update_step",
    "batch_of_backup",
    "distributed_dataset",
    "epoch_of_backup",
    "flatten_layers",
    "get_keras_mask",
    "global_state",
    "io_utils",
    "iterations_of_optimizer",
    "key_of_variable",
    "last_update_of_bar",
    "legacy_h5_format",
    "loss",
    "make_class_weight_map_fn",
    "metadata_path",
    "metadata_path_before",
    "nn",
    "numpy",
    "own_state",
    "pythonify_logs",
    "rate_of_optimizer",
    "reduction_axes",
    "saving_lib",
    "seed_generator",
    "set_keras_mask",
    "strategy_of_iterator",
    "strategy_of_model",
    "strategy_of_optimizer",
    "value_of_variable",
    "variables_of_optimizer",
    "weights_path",
    "weights_path_before",
]
