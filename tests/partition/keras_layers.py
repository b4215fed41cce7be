"""Keras's layers, each with arguments of its constructor and with what it is given."""

import functools
import inspect

import keras
from partition.keras_tracing import (
    IDS,
    IMAGES,
    SEQUENCES,
    TEXT,
    TEXTS,
    VECTORS,
    VOLUMES,
    first_of,
    public,
    spec,
    traced,
)

# The arguments of the constructor and of the call; a layer that isn't here is tried with
# `_BY_DEFAULT`.
_LAYERS = {
    "Activation": ({"activation": "gelu"}, [VECTORS]),
    "Bidirectional": (lambda: {"layer": keras.layers.GRU(3)}, [SEQUENCES]),
    "CategoryEncoding": ({"num_tokens": 5, "output_mode": "count"}, [IDS]),
    "CenterCrop": ({"height": 4, "width": 4}, [IMAGES]),
    "CutMix": ({}, [{"images": IMAGES, "labels": spec(4)}]),
    "Discretization": ({"bin_boundaries": [0.0, 1.0]}, [VECTORS]),
    "Dot": ({"axes": 1}, [[VECTORS, VECTORS]]),
    "EinsumDense": ({"equation": "abc,cd->abd", "output_shape": (None, 5)}, [SEQUENCES]),
    "Embedding": ({"input_dim": 7, "output_dim": 3}, [IDS]),
    "GRUCell": ({"units": 3}, [VECTORS, spec(3)]),
    "GroupNormalization": ({"groups": 2}, [SEQUENCES]),
    "HashedCrossing": ({"num_bins": 5}, [[TEXT, TEXT]]),
    "Hashing": ({"num_bins": 5}, [TEXTS]),
    "IntegerLookup": ({"vocabulary": [1, 2, 3]}, [IDS]),
    "LSTMCell": ({"units": 3}, [VECTORS, [spec(3), spec(3)]]),
    "Lambda": ({"function": abs}, [VECTORS]),
    "MelSpectrogram": ({"fft_length": 32, "sequence_stride": 16}, [spec(128)]),
    "MixUp": ({}, [{"images": IMAGES, "labels": spec(4)}]),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 3}, [SEQUENCES, SEQUENCES]),
    "GroupQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
        [SEQUENCES, SEQUENCES],
    ),
    "Permute": ({"dims": (2, 1)}, [SEQUENCES]),
    "Pipeline": (lambda: {"layers": [keras.layers.Rescaling(2.0)]}, [IMAGES]),
    "RNN": (lambda: {"cell": keras.layers.SimpleRNNCell(3)}, [SEQUENCES]),
    "RandomGaussianBlur": ({}, [IMAGES]),
    "RandomPosterization": ({"factor": 4, "value_range": (0, 255)}, [IMAGES]),
    "RandomCrop": ({"height": 4, "width": 4}, [IMAGES]),
    "RepeatVector": ({"n": 3}, [VECTORS]),
    "Reshape": ({"target_shape": (2, 3)}, [VECTORS]),
    "Rescaling": ({"scale": 2.0}, [IMAGES]),
    "Resizing": ({"height": 5, "width": 5}, [IMAGES]),
    "ReversibleEmbedding": ({"input_dim": 7, "output_dim": 3}, [IDS]),
    "STFTSpectrogram": ({"frame_length": 32, "frame_step": 16}, [spec(128, 1)]),
    "SimpleRNNCell": ({"units": 3}, [VECTORS, spec(3)]),
    "SpectralNormalization": (lambda: {"layer": keras.layers.Dense(3)}, [VECTORS]),
    "StackedRNNCells": (
        lambda: {"cells": [keras.layers.SimpleRNNCell(3), keras.layers.SimpleRNNCell(3)]},
        [VECTORS, [spec(3), spec(3)]],
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
    "pool_size": 2,
    "height_factor": 0.3,
    "width_factor": 0.3,
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


_RECURRENT = ("GRU", "LSTM", "RNN", "Bidirectional")
_AUGMENTATIONS = ("Rand", "AugMix", "CutMix", "MixUp")


def layers():
    """Gives of each layer that isn't in a group below its name and what traces it."""
    yield from (
        (name, trace)
        for name, trace in _all_layers()
        if not any(each in name for each in (*_RECURRENT, *_AUGMENTATIONS))
    )


def recurrent():
    """Gives of each recurrent layer its name and what traces it."""
    yield from (case for case in _all_layers() if any(each in case[0] for each in _RECURRENT))


def augmentations():
    """Gives of each layer that draws what it does to images its name and what traces it."""
    yield from (case for case in _all_layers() if any(each in case[0] for each in _AUGMENTATIONS))


def _all_layers():
    for name, kind in public(keras.layers, NO_CASE):
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
        tried = [[spec(4, *([5] * int(name[-2])), 2)]]
    elif rank := next((each for each in _BY_RANK if each in name), None):
        tried = [[_BY_RANK[rank]]]
    elif name in ("Attention", "AdditiveAttention"):
        tried = [[[SEQUENCES, SEQUENCES]]]
    else:
        tried = [[IMAGES], [SEQUENCES], [VECTORS]]
        if name.startswith(("GRU", "LSTM", "SimpleRNN", "Masking")):
            tried = [[SEQUENCES]]
    return first_of([functools.partial(_call, kind, arguments, specs) for specs in tried])


def _call(kind, arguments, specs, call=None):
    layer = kind(**arguments)
    call = dict(call or {})
    if "training" in inspect.signature(layer.call).parameters:
        call["training"] = True
    return traced(lambda *inputs: layer(*inputs, **call), *specs)
