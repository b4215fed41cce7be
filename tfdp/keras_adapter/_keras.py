"""Every private Keras name that the adapter uses, each with its reason.

Tested with Keras 3.15.1. `tests/keras_adapter/test_hooks.py` fails when a hooked function changes.
"""

# The variable class: `keras.Variable` is the same object, but its module is needed for the backend.
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.variables import Variable as KerasVariable

# The random functions: `keras.random` and all layers call them by name.
from keras.src.backend.tensorflow import nn, random, trainer
from keras.src.backend.tensorflow.core import Variable

# The reduction of gradients and the variables for accumulation.
from keras.src.backend.tensorflow.optimizer import TFOptimizer

# How they make TensorFlow's seed of Keras'.
from keras.src.backend.tensorflow.random import _cast_seed as cast_seed
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.layers.layer import Layer

# The functions that write files: `Model.save` and the callbacks call them by name.
from keras.src.legacy.saving import legacy_h5_format

# The functions that all losses share; `keras.losses.Loss` calls them by name.
from keras.src.losses import loss as losses
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random import seed_generator
from keras.src.random.seed_generator import SeedGenerator, draw_seed
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

# `class_weight` as a function of batches.
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

# Keras says by it where it has saved.
from keras.src.utils import io_utils

# The global state's name of the generator that draws without a seed use. Keras has a constant for
# it since 3.13, and the same string in place of it before.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

__all__ = [
    "GLOBAL_SEED_GENERATOR",
    "ArrayDataAdapter",
    "BaseOptimizer",
    "EpochIterator",
    "KerasVariable",
    "Layer",
    "LossScaleOptimizer",
    "SeedGenerator",
    "StatelessScope",
    "TFEpochIterator",
    "TFOptimizer",
    "TensorFlowTrainer",
    "Trainer",
    "Variable",
    "cast_seed",
    "draw_seed",
    "get_keras_mask",
    "global_state",
    "io_utils",
    "legacy_h5_format",
    "losses",
    "make_class_weight_map_fn",
    "nn",
    "random",
    "saving_lib",
    "seed_generator",
    "set_keras_mask",
    "trainer",
]
