"""The operations that Keras makes of its public classes and functions, each with its gradient.

Nothing is computed: each case is traced as on one device, with batches of unknown length. What this
version of Keras doesn't have is left out, and what it has is traced, with the arguments that are
given or with those that its kind takes by default.
"""

import collections
import functools

import keras
import tensorflow as tf
from partition import keras_functions, keras_layers
from partition.keras_tracing import (
    IMAGES,
    LABELS,
    NUMBERS,
    operations,
    public,
    spec,
    trace,
    traced,
)

_SCORES = (spec(3), spec(3))
_BINARY = (spec(1), spec(1))
_SPARSE = (LABELS, spec(3))

_LOSSES = {
    "CTC": ({}, (spec(4, dtype=tf.int32), spec(8, 5))),
    "CategoricalGeneralizedCrossEntropy": ({}, (LABELS, spec(3))),
    "Circle": ({}, (LABELS, spec(3))),
    "Dice": ({}, (IMAGES, IMAGES)),
    "SparseCategoricalCrossentropy": ({"from_logits": True}, _SPARSE),
    "Tversky": ({}, (IMAGES, IMAGES)),
}

_METRICS = {
    "IoU": ({"num_classes": 3, "target_class_ids": [0]}, (LABELS, LABELS)),
    "BinaryIoU": ({}, _BINARY),
    "MeanIoU": ({"num_classes": 3}, (LABELS, LABELS)),
    "Mean": ({}, (NUMBERS, NUMBERS)),
    "OneHotIoU": ({"num_classes": 3, "target_class_ids": [0]}, _SCORES),
    "OneHotMeanIoU": ({"num_classes": 3}, _SCORES),
    "PrecisionAtRecall": ({"recall": 0.5}, _BINARY),
    "RecallAtPrecision": ({"precision": 0.5}, _BINARY),
    "SensitivityAtSpecificity": ({"specificity": 0.5}, _BINARY),
    "SparseCategoricalAccuracy": ({}, _SPARSE),
    "SparseCategoricalCrossentropy": ({}, _SPARSE),
    "SparseTopKCategoricalAccuracy": ({"k": 2}, _SPARSE),
    "SpecificityAtSensitivity": ({"sensitivity": 0.5}, _BINARY),
    "Sum": ({}, (NUMBERS, NUMBERS)),
    "TopKCategoricalAccuracy": ({"k": 2}, _SCORES),
}


def losses():
    """Gives of each loss its name and what traces it."""
    for name, kind in public(keras.losses, ["Loss"]):
        arguments, specs = _LOSSES.get(name, ({}, _SCORES))
        yield (
            f"losses.{name}",
            lambda kind=kind, arguments=arguments, specs=specs: traced(kind(**arguments), *specs),
        )


def metrics():
    """Gives of each metric its name and what traces its update and its result."""
    for name, kind in public(keras.metrics, ["Metric", "MeanMetricWrapper"]):
        arguments, specs = _METRICS.get(name, ({}, _SCORES))
        yield f"metrics.{name}", functools.partial(_metric, kind, arguments, specs)


def _metric(kind, arguments, specs):
    metric = kind(**arguments)

    def update(*inputs):
        metric.update_state(*inputs)
        return metric.result()

    return trace(update, specs)


_OPTIMIZERS = {
    "LossScaleOptimizer": lambda kind: kind(keras.optimizers.Adam()),
    "MultiOptimizer": None,
    "OptimizerMap": None,
    "Optimizer": None,
}
_OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 1.0},
    "Adam": {"amsgrad": True, "global_clipnorm": 1.0, "gradient_accumulation_steps": 2},
    "AdamW": {"clipvalue": 1.0, "use_ema": True, "ema_overwrite_frequency": 2},
    "RMSprop": {"momentum": 0.9, "centered": True},
}


def optimizers():
    """Gives of each optimizer its name and what traces its step."""
    for name, kind in public(keras.optimizers):
        make = _OPTIMIZERS.get(name, lambda kind: kind())
        if make is not None:
            yield f"optimizers.{name}", functools.partial(_optimizer, make, kind)
        if name in _OPTIONS:
            make = functools.partial(lambda options, kind: kind(**options), _OPTIONS[name])
            yield f"optimizers.{name}, options", functools.partial(_optimizer, make, kind)


def _optimizer(make, kind):
    variables = [keras.Variable(tf.ones([4, 3])), keras.Variable(tf.ones([3]))]
    optimizer = make(kind)
    optimizer.build(variables)

    def step(*gradients):
        optimizer.apply(gradients, variables)

    return trace(step, [tf.TensorSpec(each.shape) for each in variables])


GROUPS = {
    "layers": keras_layers.layers,
    "recurrent": keras_layers.recurrent,
    "augmentations": keras_layers.augmentations,
    "losses": losses,
    "metrics": metrics,
    "optimizers": optimizers,
    "ops": keras_functions.functions,
}


def found(group):
    """Traces a group's cases.

    Returns:
      Of each type of operation that replicas write the number by the name of the case; the same of
      calls and identities in whose place others are written; and of each case that could not be
      traced the error.
    """
    written = collections.defaultdict(collections.Counter)
    replaced = collections.defaultdict(collections.Counter)
    failed = {}
    for name, make in GROUPS[group]():
        try:
            counts = operations(make())
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        for table, counted in zip((written, replaced), counts, strict=True):
            for type_, count in counted.items():
                table[type_][name] += count
    return written, replaced, failed
