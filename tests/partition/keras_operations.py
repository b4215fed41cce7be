"""The operations that Keras makes of its public classes and functions, each with its gradient.

Nothing is computed: each case is traced as on one device, with batches of unknown length. What this
version of Keras doesn't have is left out, and what it has is traced, with the arguments that are
given here or with those that its kind takes by default.
"""

import collections
import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from tfdp.partition.flattening import _CALLS, _SAME, Flattened
from tfdp.partition.source import SourceGraph


def operations(concrete):
    """Counts the types of operations that a function's replicas write, in branches and loops, too.

    Args:
      concrete: The function, traced.

    Returns:
      The types, and those of the calls and the identities in whose place others are written.
    """
    written, replaced = collections.Counter(), collections.Counter()
    graphs = [SourceGraph(concrete.graph)]
    while graphs:
        graph = graphs.pop()
        _count_replaced(graph, replaced)
        for task in Flattened(graph).tasks:
            written[task.op.type] += 1
            graphs += [task.op.graph.function(name) for name in _functions(task.op)]
    return written, replaced


def _count_replaced(graph, replaced):
    for op in graph.ops:
        if op.type in (*_CALLS, *_SAME):
            replaced[op.type] += 1
        if op.type in _CALLS:
            _count_replaced(op.function("f"), replaced)


def _functions(op):
    for value in op.node.attr.values():
        kind = value.WhichOneof("value")
        called = [value.func] if kind == "func" else value.list.func if kind == "list" else ()
        yield from (each.name for each in called)


def traced(function, *specs):
    """Traces a function with its gradient, or without where TensorFlow has none."""
    try:
        return _traced(_with_gradient(function), specs)
    except (LookupError, NotImplementedError):
        return _traced(function, specs)


def _traced(function, specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def _with_gradient(function):
    def both(*inputs):
        with tf.GradientTape() as tape:
            watched = [each for each in tf.nest.flatten(inputs) if _has_gradient(each)]
            tape.watch(watched)
            outputs = function(*inputs)
            flat = tf.nest.flatten(outputs, expand_composites=True)
            terms = [
                tf.reduce_sum(tf.abs(each) ** 2)
                for each in flat
                if tf.is_tensor(each) and _has_gradient(each)
            ]
            loss = tf.add_n([tf.cast(each, tf.float32) for each in terms]) if terms else None
        if loss is None:
            return outputs
        return outputs, tape.gradient(loss, [*watched, *tape.watched_variables()])

    return both


def _has_gradient(tensor):
    return tf.is_tensor(tensor) and (tensor.dtype.is_floating or tensor.dtype.is_complex)


def _spec(*sizes, dtype=tf.float32):
    return tf.TensorSpec([None, *sizes], dtype)


NUMBERS = _spec()
VECTORS = _spec(6)
SEQUENCES = _spec(8, 4)
IMAGES = _spec(8, 8, 3)
VOLUMES = _spec(6, 6, 6, 2)
VIDEOS = _spec(4, 8, 8, 3)
LABELS = _spec(dtype=tf.int32)
IDS = _spec(6, dtype=tf.int32)
TEXTS = _spec(6, dtype=tf.string)
TEXT = _spec(dtype=tf.string)
SQUARES = _spec(4, 4)
COMPLEX = _spec(8, dtype=tf.complex64)


# Layers ------------------------------------------------------------------------------------------

# The arguments of the constructor and of the call; a layer that isn't here is tried with
# `_BY_DEFAULT`.
_LAYERS = {
    "Activation": ({"activation": "gelu"}, [VECTORS]),
    "Bidirectional": (lambda: {"layer": keras.layers.GRU(3)}, [SEQUENCES]),
    "CategoryEncoding": ({"num_tokens": 5, "output_mode": "count"}, [IDS]),
    "CenterCrop": ({"height": 4, "width": 4}, [IMAGES]),
    "CutMix": ({}, [{"images": IMAGES, "labels": _spec(4)}]),
    "Discretization": ({"bin_boundaries": [0.0, 1.0]}, [VECTORS]),
    "Dot": ({"axes": 1}, [[VECTORS, VECTORS]]),
    "EinsumDense": ({"equation": "abc,cd->abd", "output_shape": (None, 5)}, [SEQUENCES]),
    "Embedding": ({"input_dim": 7, "output_dim": 3}, [IDS]),
    "GRUCell": ({"units": 3}, [VECTORS, _spec(3)]),
    "GroupNormalization": ({"groups": 2}, [SEQUENCES]),
    "HashedCrossing": ({"num_bins": 5}, [[TEXT, TEXT]]),
    "Hashing": ({"num_bins": 5}, [TEXTS]),
    "IntegerLookup": ({"vocabulary": [1, 2, 3]}, [IDS]),
    "LSTMCell": ({"units": 3}, [VECTORS, [_spec(3), _spec(3)]]),
    "Lambda": ({"function": abs}, [VECTORS]),
    "MelSpectrogram": ({"fft_length": 32, "sequence_stride": 16}, [_spec(128)]),
    "MixUp": ({}, [{"images": IMAGES, "labels": _spec(4)}]),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 3}, [SEQUENCES, SEQUENCES]),
    "GroupQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
        [SEQUENCES, SEQUENCES],
    ),
    "Permute": ({"dims": (2, 1)}, [SEQUENCES]),
    "Pipeline": (lambda: {"layers": [keras.layers.Rescaling(2.0)]}, [IMAGES]),
    "RNN": (lambda: {"cell": keras.layers.SimpleRNNCell(3)}, [SEQUENCES]),
    "RandomCrop": ({"height": 4, "width": 4}, [IMAGES]),
    "RepeatVector": ({"n": 3}, [VECTORS]),
    "Reshape": ({"target_shape": (2, 3)}, [VECTORS]),
    "Resizing": ({"height": 5, "width": 5}, [IMAGES]),
    "ReversibleEmbedding": ({"input_dim": 7, "output_dim": 3}, [IDS]),
    "STFTSpectrogram": ({"frame_length": 32, "frame_step": 16}, [_spec(128, 1)]),
    "SimpleRNNCell": ({"units": 3}, [VECTORS, _spec(3)]),
    "SpectralNormalization": (lambda: {"layer": keras.layers.Dense(3)}, [VECTORS]),
    "StackedRNNCells": (
        lambda: {"cells": [keras.layers.SimpleRNNCell(3), keras.layers.SimpleRNNCell(3)]},
        [VECTORS, [_spec(3), _spec(3)]],
    ),
    "StringLookup": ({"vocabulary": ["a", "b"]}, [TEXTS]),
    "TextVectorization": ({"vocabulary": ["a", "b"]}, [TEXT]),
    "TimeDistributed": (lambda: {"layer": keras.layers.Dense(3)}, [SEQUENCES]),
}

# Besides, variants of layers whose arguments change what they are made of.
_VARIANTS = {
    "Bidirectional, LSTM": ({"layer": "LSTM"}, [SEQUENCES]),
    "BatchNormalization, 4D": ({}, [IMAGES]),
    "Embedding, masked LSTM": ({}, [IDS]),
    "IntegerLookup, multi_hot": (
        {"vocabulary": [1, 2, 3], "output_mode": "multi_hot"},
        [IDS],
    ),
    "TextVectorization, tf_idf": (
        {"vocabulary": ["a", "b"], "idf_weights": [1.0, 2.0], "output_mode": "tf_idf"},
        [TEXT],
    ),
    "Resizing, bicubic": ({"height": 5, "width": 5, "interpolation": "bicubic"}, [IMAGES]),
    "Resizing, nearest": ({"height": 5, "width": 5, "interpolation": "nearest"}, [IMAGES]),
    "UpSampling2D, bilinear": ({"interpolation": "bilinear"}, [IMAGES]),
    "GRU, unrolled": ({"units": 3, "unroll": True}, [SEQUENCES]),
    "LSTM, return_sequences": ({"units": 3, "return_sequences": True}, [SEQUENCES]),
    "MultiHeadAttention, causal": (
        {"num_heads": 2, "key_dim": 3},
        [SEQUENCES, SEQUENCES],
        {"use_causal_mask": True},
    ),
    "Conv1D, causal": ({"filters": 3, "kernel_size": 2, "padding": "causal"}, [SEQUENCES]),
    "Conv2D, groups": ({"filters": 6, "kernel_size": 2, "groups": 3}, [IMAGES]),
    "Conv2D, dilation": ({"filters": 3, "kernel_size": 2, "dilation_rate": 2}, [IMAGES]),
}


def _masked():
    embedding = keras.layers.Embedding(7, 3, mask_zero=True)
    recurrent = keras.layers.LSTM(3)
    return lambda ids, training: recurrent(embedding(ids), training=training)


# What a layer is tried with: arguments of its constructor, of those that it takes.
_BY_DEFAULT = {
    "filters": 3,
    "kernel_size": 2,
    "units": 3,
    "output_size": 2,
    "factor": 0.3,
    "rate": 0.3,
    "stddev": 0.3,
    "value_range": (0, 255),
    "dropout": 0.2,
}
_MERGING = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")
_BY_RANK = {"1D": SEQUENCES, "2D": IMAGES, "3D": VOLUMES}

# Why a layer isn't traced.
NO_CASE = {
    "FlaxLayer": "of JAX",
    "Input": "makes no operation",
    "InputLayer": "makes no operation",
    "InputSpec": "is no layer",
    "JaxLayer": "of JAX",
    "Layer": "is abstract",
    "MaxNumBoundingBoxes": "of bounding boxes",
    "TFSMLayer": "of a saved model, whose operations are the model's",
    "TorchModuleWrapper": "of PyTorch",
    "Wrapper": "is abstract",
}


def layers():
    """Gives of each layer its name and what traces it."""
    for name, kind in _public(keras.layers, NO_CASE):
        yield f"layers.{name}", functools.partial(_layer, name, kind)
    for name, (arguments, specs, *call) in _VARIANTS.items():
        kind = getattr(keras.layers, name.partition(",")[0])
        if name == "Embedding, masked LSTM":
            yield f"layers.{name}", lambda: traced(functools.partial(_masked(), training=True), IDS)
            continue
        if arguments.get("layer") == "LSTM":
            arguments = {"layer": keras.layers.LSTM(3, dropout=0.1, recurrent_dropout=0.1)}
        yield f"layers.{name}", functools.partial(_call, kind, arguments, specs, *call)


def _layer(name, kind):
    if name in _LAYERS:
        arguments, specs = _LAYERS[name]
        return _call(kind, arguments() if callable(arguments) else arguments, specs)
    parameters = inspect.signature(kind.__init__).parameters
    arguments = {
        key: value
        for key, value in _BY_DEFAULT.items()
        if key in parameters and (key != "dropout" or "recurrent_dropout" not in parameters)
    }
    if name in _MERGING:
        tried = [[[VECTORS, VECTORS]]]
    elif name.startswith("ConvLSTM"):
        tried = [[_spec(4, *([5] * int(name[-2])), 2)]]
    elif name[-2:] in _BY_RANK:
        tried = [[_BY_RANK[name[-2:]]]]
    elif name in ("Attention", "AdditiveAttention"):
        tried = [[[SEQUENCES, SEQUENCES]]]
    else:
        tried = [[IMAGES], [SEQUENCES], [VECTORS]]
        if name.startswith(("GRU", "LSTM", "SimpleRNN", "Masking")):
            tried = [[SEQUENCES]]
    return _first_of([functools.partial(_call, kind, arguments, specs) for specs in tried])


def _call(kind, arguments, specs, call=None):
    layer = kind(**arguments)
    call = dict(call or {})
    if "training" in inspect.signature(layer.call).parameters:
        call["training"] = True
    return traced(lambda *inputs: layer(*inputs, **call), *specs)


# Losses, metrics, optimizers ---------------------------------------------------------------------

_SCORES = (_spec(3), _spec(3))
_BINARY = (_spec(1), _spec(1))
_SPARSE = (LABELS, _spec(3))

_LOSSES = {
    "CTC": ({}, (_spec(4, dtype=tf.int32), _spec(8, 5))),
    "CategoricalGeneralizedCrossEntropy": ({}, (LABELS, _spec(3))),
    "Circle": ({}, (LABELS, _spec(3))),
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
    for name, kind in _public(keras.losses, ["Loss"]):
        arguments, specs = _LOSSES.get(name, ({}, _SCORES))
        yield (
            f"losses.{name}",
            lambda kind=kind, arguments=arguments, specs=specs: traced(kind(**arguments), *specs),
        )


def metrics():
    """Gives of each metric its name and what traces its update and its result."""
    for name, kind in _public(keras.metrics, ["Metric", "MeanMetricWrapper"]):
        arguments, specs = _METRICS.get(name, ({}, _SCORES))
        yield f"metrics.{name}", functools.partial(_metric, kind, arguments, specs)


def _metric(kind, arguments, specs):
    metric = kind(**arguments)

    def update(*inputs):
        metric.update_state(*inputs)
        return metric.result()

    return _traced(update, specs)


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
    for name, kind in _public(keras.optimizers):
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

    return _traced(step, [tf.TensorSpec(each.shape) for each in variables])


# Functions ---------------------------------------------------------------------------------------

_X = SEQUENCES
_FUNCTIONS = {
    "adaptive_average_pool": (lambda x: keras.ops.adaptive_average_pool(x, 2), IMAGES),
    "adaptive_max_pool": (lambda x: keras.ops.adaptive_max_pool(x, 2), IMAGES),
    "arange": (lambda x: keras.ops.arange(keras.ops.shape(x)[0]), _X),
    "argpartition": (lambda x: keras.ops.argpartition(x, 2), _X),
    "array_split": (lambda x: keras.ops.array_split(x, 3, axis=1), _X),
    "associative_scan": (lambda x: keras.ops.associative_scan(lambda a, b: a + b, x, axis=1), _X),
    "average_pool": (lambda x: keras.ops.average_pool(x, 2), IMAGES),
    "batch_normalization": (
        lambda x: keras.ops.batch_normalization(x, tf.ones(4), tf.ones(4), -1),
        _X,
    ),
    "bincount": (lambda x: keras.ops.bincount(x, minlength=5), IDS),
    "broadcast_to": (lambda x: keras.ops.broadcast_to(x, (2, *x.shape[1:])), tf.TensorSpec([1, 3])),
    "cast": (lambda x: keras.ops.cast(x, "float16"), _X),
    "cdist": (keras.ops.__dict__.get("cdist"), _X, _X),
    "clip": (lambda x: keras.ops.clip(x, 0.0, 1.0), _X),
    "cond": (lambda x: keras.ops.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2 * x), _X),
    "conv": (lambda x: keras.ops.conv(x, tf.ones([2, 2, 3, 4])), IMAGES),
    "conv_transpose": (
        lambda x: keras.ops.conv_transpose(x, tf.ones([2, 2, 4, 3]), 2),
        IMAGES,
    ),
    "correlate": (keras.ops.correlate, NUMBERS, NUMBERS),
    "cross": (keras.ops.cross, _spec(3), _spec(3)),
    "ctc_decode": (lambda x: keras.ops.ctc_decode(x, tf.fill([tf.shape(x)[0]], 8)), _spec(8, 5)),
    "ctc_decode, beam": (
        lambda x: keras.ops.ctc_decode(x, tf.fill([tf.shape(x)[0]], 8), strategy="beam_search"),
        _spec(8, 5),
    ),
    "ctc_loss": (
        keras.ops.ctc_loss,
        _spec(4, dtype=tf.int32),
        _spec(8, 5),
        LABELS,
        LABELS,
    ),
    "depth_to_space": (lambda x: keras.ops.depth_to_space(x, 2), _spec(4, 4, 4)),
    "space_to_depth": (lambda x: keras.ops.space_to_depth(x, 2), _spec(4, 4, 4)),
    "depthwise_conv": (lambda x: keras.ops.depthwise_conv(x, tf.ones([2, 2, 3, 2])), IMAGES),
    "separable_conv": (
        lambda x: keras.ops.separable_conv(x, tf.ones([2, 2, 3, 2]), tf.ones([1, 1, 6, 4])),
        IMAGES,
    ),
    "diag": (keras.ops.diag, NUMBERS),
    "dot_product_attention": (keras.ops.dot_product_attention, *([_spec(4, 2, 3)] * 3)),
    "einsum": (lambda x, y: keras.ops.einsum("abc,abd->acd", x, y), _X, _X),
    "einsum, over the batch": (lambda x, y: keras.ops.einsum("abc,adc->bd", x, y), _X, _X),
    "extract_sequences": (lambda x: keras.ops.extract_sequences(x, 4, 2), _spec(16)),
    "eye": (lambda x: keras.ops.eye(4), _X),
    "fft": (lambda x, y: keras.ops.fft((x, y)), _spec(8), _spec(8)),
    "fft2": (lambda x, y: keras.ops.fft2((x, y)), SQUARES, SQUARES),
    "ifft2": (lambda x, y: keras.ops.ifft2((x, y)), SQUARES, SQUARES),
    "fold": (lambda x: keras.ops.fold(x, (4, 4), 2), _spec(4, 9)),
    "unfold": (lambda x: keras.ops.unfold(x, 2), _spec(3, 4, 4)),
    "fori_loop": (lambda x: keras.ops.fori_loop(0, 3, lambda i, a: 2 * a, x), _X),
    "full": (lambda x: keras.ops.full(keras.ops.shape(x), 2.0), _X),
    "geomspace": (lambda x: keras.ops.geomspace(x, 9.0, 5), _X),
    "get_item": (lambda x: keras.ops.get_item(x, (slice(None), 1)), _X),
    "histogram": (lambda x: keras.ops.histogram(x, 4), NUMBERS),
    "identity": (lambda x: keras.ops.identity(4), _X),
    "in_top_k": (lambda t, p: keras.ops.in_top_k(t, p, 2), LABELS, _spec(5)),
    "irfft": (lambda x, y: keras.ops.irfft((x, y)), _spec(5), _spec(5)),
    "isin": (keras.ops.__dict__.get("isin"), IDS, IDS),
    "istft": (lambda x, y: keras.ops.istft((x, y), 32, 16, 32), _spec(5, 17), _spec(5, 17)),
    "jvp": (lambda x: keras.ops.jvp(lambda a: a * a, (x,), (x,)), _X),
    "layer_normalization": (
        lambda x: keras.ops.layer_normalization(x, tf.ones(4), tf.ones(4)),
        _X,
    ),
    "linspace": (lambda x: keras.ops.linspace(x, x + 1, 5), _X),
    "logspace": (lambda x: keras.ops.logspace(x, x + 1, 5), _X),
    "lstsq": (lambda x: keras.ops.lstsq(x, x), VECTORS),
    "map": (lambda x: keras.ops.map(lambda a: 2 * a, x), _X),
    "max_pool": (lambda x: keras.ops.max_pool(x, 2), IMAGES),
    "meshgrid": (keras.ops.meshgrid, NUMBERS, NUMBERS),
    "moments": (lambda x: keras.ops.moments(x, [0]), _X),
    "multi_hot": (lambda x: keras.ops.multi_hot(x, 5), IDS),
    "one_hot": (lambda x: keras.ops.one_hot(x, 5), IDS),
    "ones": (lambda x: keras.ops.ones(keras.ops.shape(x)), _X),
    "zeros": (lambda x: keras.ops.zeros(keras.ops.shape(x)), _X),
    "empty": (lambda x: keras.ops.empty(keras.ops.shape(x)), _X),
    "norm, nuclear": (lambda x: keras.ops.norm(x, "nuc", axis=(1, 2)), SQUARES),
    "pad": (lambda x: keras.ops.pad(x, [[0, 0], [1, 1], [0, 0]]), _X),
    "pad, reflect": (lambda x: keras.ops.pad(x, [[0, 0], [1, 1], [0, 0]], mode="reflect"), _X),
    "percentile": (lambda x: keras.ops.percentile(x, 30, axis=0), _X),
    "nanpercentile": (lambda x: keras.ops.nanpercentile(x, 30, axis=0), _X),
    "quantile": (lambda x: keras.ops.quantile(x, 0.3, axis=0), _X),
    "nanquantile": (lambda x: keras.ops.nanquantile(x, 0.3, axis=0), _X),
    "psnr": (lambda x, y: keras.ops.psnr(x, y, 1.0), _X, _X),
    "rearrange": (lambda x: keras.ops.rearrange(x, "a b c -> a c b"), _X),
    "repeat": (lambda x: keras.ops.repeat(x, 2, axis=0), _X),
    "reshape": (lambda x: keras.ops.reshape(x, (-1, 4)), _X),
    "roll": (lambda x: keras.ops.roll(x, 1, axis=0), _X),
    "scan": (lambda x: keras.ops.scan(lambda a, b: (a + b, a), tf.zeros([8, 4]), x), _X),
    "scatter": (lambda i, x: keras.ops.scatter(i, x, (5,)), _spec(1, dtype=tf.int32), NUMBERS),
    "scatter_update": (
        lambda x, i, u: keras.ops.scatter_update(x, i, u),
        NUMBERS,
        _spec(1, dtype=tf.int32),
        NUMBERS,
    ),
    "searchsorted": (lambda x: keras.ops.searchsorted(tf.range(5.0), x), VECTORS),
    "digitize": (lambda x: keras.ops.digitize(x, tf.range(5.0)), VECTORS),
    "select": (lambda x: keras.ops.select([x > 0, x > 1], [x, 2 * x], 0.0), _X),
    "slice": (lambda x: keras.ops.slice(x, (0, 1, 0), (2, 2, 2)), _X),
    "slice_update": (
        lambda x: keras.ops.slice_update(x, (0, 1, 0), tf.ones([1, 2, 2])),
        _X,
    ),
    "solve": (keras.ops.solve, SQUARES, SQUARES),
    "solve_triangular": (keras.ops.solve_triangular, SQUARES, SQUARES),
    "split": (lambda x: keras.ops.split(x, 2, axis=1), _X),
    "hsplit": (lambda x: keras.ops.hsplit(x, 2), _X),
    "dsplit": (lambda x: keras.ops.dsplit(x, 2), _X),
    "vsplit": (lambda x: keras.ops.vsplit(x, 2), tf.TensorSpec([4, 4])),
    "unstack": (lambda x: keras.ops.unstack(x, axis=1), _X),
    "sparse_categorical_crossentropy": (
        lambda t, p: keras.ops.sparse_categorical_crossentropy(t, p, from_logits=True),
        LABELS,
        _spec(5),
    ),
    "squeeze": (lambda x: keras.ops.squeeze(x, 1), _spec(1, 4)),
    "stft": (lambda x: keras.ops.stft(x, 32, 16, 32), _spec(128)),
    "rfft": (keras.ops.rfft, _spec(8)),
    "switch": (lambda i, x: keras.ops.switch(i[0], [lambda a: a, lambda a: 2 * a], x), LABELS, _X),
    "take": (lambda x: keras.ops.take(x, [0, 1], axis=1), _X),
    "take, rows": (lambda x, i: keras.ops.take(x, i, axis=0), _X, LABELS),
    "take_along_axis": (
        lambda x, i: keras.ops.take_along_axis(x, i, axis=1),
        _X,
        _spec(8, 4, dtype=tf.int32),
    ),
    "tensordot": (lambda x, y: keras.ops.tensordot(x, y, axes=[[0, 1], [0, 1]]), _X, _X),
    "tile": (lambda x: keras.ops.tile(x, [1, 2, 1]), _X),
    "top_k": (lambda x: keras.ops.top_k(x, 2), _X),
    "tri": (lambda x: keras.ops.tri(4), _X),
    "threshold": (lambda x: keras.ops.threshold(x, 0.5, 0.0), _X),
    "trace": (lambda x: keras.ops.trace(x, axis1=1, axis2=2), SQUARES),
    "unique": (lambda x: keras.ops.unique(x), LABELS),
    "unravel_index": (lambda x: keras.ops.unravel_index(x, (3, 4)), LABELS),
    "vander": (lambda x: keras.ops.vander(x, 3), NUMBERS),
    "vectorize": (lambda x: keras.ops.vectorize(lambda a: 2 * a)(x), NUMBERS),
    "vectorized_map": (lambda x: keras.ops.vectorized_map(lambda a: 2 * a, x), _X),
    "view": (lambda x: keras.ops.view(x, "int32"), _X),
    "view_as_complex": (keras.ops.__dict__.get("view_as_complex"), _spec(4, 2)),
    "view_as_real": (keras.ops.__dict__.get("view_as_real"), COMPLEX),
    "where": (lambda x: keras.ops.where(x > 0, x, 0.0), _X),
    "where, indices": (lambda x: keras.ops.where(x > 0), _X),
    "while_loop": (
        lambda x: keras.ops.while_loop(lambda a: tf.reduce_sum(a) < 9, lambda a: (a + 1,), (x,)),
        _X,
    ),
    "segment_max": (lambda x, i: keras.ops.segment_max(x, i, 5), _X, LABELS),
    "segment_min": (lambda x, i: keras.ops.segment_min(x, i, 5), _X, LABELS),
    "segment_prod": (lambda x, i: keras.ops.segment_prod(x, i, 5), _X, LABELS),
    "segment_sum": (lambda x, i: keras.ops.segment_sum(x, i, 5), _X, LABELS),
    "logical_not": (keras.ops.logical_not, _spec(4, dtype=tf.bool)),
    "affine_transform": (lambda x, t: keras.ops.image.affine_transform(x, t), IMAGES, _spec(8)),
    "crop_images": (lambda x: keras.ops.image.crop_images(x, 1, 1, 1, 1), IMAGES),
    "elastic_transform": (
        lambda x: keras.ops.image.elastic_transform(x, seed=keras.random.SeedGenerator(1)),
        IMAGES,
    ),
    "extract_patches": (lambda x: keras.ops.image.extract_patches(x, 2), IMAGES),
    "extract_patches_3d": (lambda x: keras.ops.image.extract_patches_3d(x, 2), VOLUMES),
    "gaussian_blur": (lambda x: keras.ops.image.gaussian_blur(x), IMAGES),
    "map_coordinates": (
        lambda x: keras.ops.image.map_coordinates(x, [x, x], 1),
        _spec(8),
    ),
    "pad_images": (lambda x: keras.ops.image.pad_images(x, 1, 1, 1, 1), IMAGES),
    "perspective_transform": (
        lambda x, a: keras.ops.image.perspective_transform(x, a, a),
        IMAGES,
        _spec(4, 2),
    ),
    "resize": (lambda x: keras.ops.image.resize(x, (5, 5)), IMAGES),
    "scale_and_translate": (
        lambda x: keras.ops.image.scale_and_translate(
            x, (3, 5, 5, 3), tf.ones(2), tf.ones(2), (1, 2), "linear"
        ),
        tf.TensorSpec([3, 8, 8, 3]),
    ),
    "gamma": (lambda x: keras.random.gamma(keras.ops.shape(x), 2.0, seed=1), _X),
    "beta": (lambda x: keras.random.beta(keras.ops.shape(x), 2.0, 2.0, seed=1), _X),
    "binomial": (lambda x: keras.random.binomial(keras.ops.shape(x), 4.0, 0.5, seed=1), _X),
    "categorical": (lambda x: keras.random.categorical(x, 2, seed=1), VECTORS),
    "dropout": (lambda x: keras.random.dropout(x, 0.5, seed=1), _X),
    "normal": (lambda x: keras.random.normal(keras.ops.shape(x), seed=1), _X),
    "randint": (lambda x: keras.random.randint(keras.ops.shape(x), 0, 5, seed=1), _X),
    "shuffle": (lambda x: keras.random.shuffle(x, seed=1), _X),
    "truncated_normal": (
        lambda x: keras.random.truncated_normal(keras.ops.shape(x), seed=1),
        _X,
    ),
    "uniform": (lambda x: keras.random.uniform(keras.ops.shape(x), seed=1), _X),
    "uniform, seeded by a generator": (
        lambda x: keras.random.uniform(keras.ops.shape(x), seed=_generator()),
        _X,
    ),
}


@functools.cache
def _generator():
    with tf.init_scope():
        return keras.random.SeedGenerator(1)


# Why a function isn't traced.
NO_CALL = {
    "array": "makes a tensor of Python's numbers",
    "convert_to_numpy": "needs numbers",
    "custom_gradient": "is the user's function",
    "dtype": "says how a tensor looks, without operations",
}

# What a function that isn't in `_FUNCTIONS` is tried with, of the number of arguments that it needs.
_TRIED = (SEQUENCES, IDS, SQUARES, COMPLEX, NUMBERS, IMAGES)


def functions():
    """Gives of each function its name and what traces it."""
    for name, (function, *specs) in _FUNCTIONS.items():
        if function is not None:
            yield f"ops.{name}", functools.partial(traced, function, *specs)
    for module in (keras.ops, keras.ops.image):
        for name in sorted(vars(module)):
            function = getattr(module, name)
            if inspect.isfunction(function) and name[0] != "_":
                if name not in _FUNCTIONS and name not in NO_CALL:
                    yield f"ops.{name}", functools.partial(_function, function)


def _function(function):
    parameters = inspect.signature(function).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    if needed and needed[0].name in ("xs", "arrays"):
        return traced(lambda x: function([x, 2 * x]), _X)
    count = len(needed) or 1
    return _first_of([functools.partial(traced, function, *[s] * count) for s in _TRIED])


# All ---------------------------------------------------------------------------------------------

GROUPS = {
    "layers": layers,
    "losses": losses,
    "metrics": metrics,
    "optimizers": optimizers,
    "ops": functions,
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
    for name, trace in GROUPS[group]():
        try:
            counts = operations(trace())
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        for table, counted in zip((written, replaced), counts, strict=True):
            for type_, count in counted.items():
                table[type_][name] += count
    return written, replaced, failed


def _public(module, without=()):
    """Gives a module's public classes, each by its own name alone."""
    for name in sorted(vars(module)):
        kind = getattr(module, name)
        if inspect.isclass(kind) and kind.__name__ == name and name not in without:
            yield name, kind


def _first_of(attempts):
    """Returns what the first attempt gives that succeeds."""
    for attempt in attempts[:-1]:
        with contextlib.suppress(Exception):
            return attempt()
    return attempts[-1]()
