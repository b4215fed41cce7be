"""One backbone of `benchmarks layouts`: compiles its steps, and prints their facts as JSON.

python -m benchmarks.layouts_worker LlamaBackbone 1x8,2x4 8 16 64
"""

import argparse
import inspect
import json
import math
import os
from collections.abc import Mapping
from typing import Any

DEVICES = 8

#: What a constructor is given, by the names of its arguments.
SIZES: Mapping[str, Any] = {
    "vocabulary_size": 4096,
    "num_layers": 2,
    "num_heads": 8,
    "num_query_heads": 8,
    "num_attention_heads": 8,
    "hidden_dim": 256,
    "embedding_dim": 256,
    "head_dim": 32,
    "intermediate_dim": 1024,
    "moe_intermediate_dim": 256,
    "shared_expert_intermediate_dim": 512,
    "num_experts": 8,
    "top_k": 2,
    "num_experts_per_tok": 2,
    "max_sequence_length": 64,
    "bucket_size": 16,
}

# XLA's compilation is that of any CPU, up to machine code, which no figure depends on.
_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def mesh_of(text: str) -> dict[str, int]:
    """Returns the mesh that a text such as "2x4" names.

    >>> mesh_of("2x4")
    {'batch': 2, 'model': 4}
    >>> mesh_of("3x2")
    Traceback (most recent call last):
        ...
    ValueError: A mesh must be two sizes whose product is 8, but received '3x2'. Use 2x4.
    """
    sizes = [int(size) for size in text.split("x") if size.isdecimal()]
    if len(sizes) != 2 or text.count("x") != 1 or math.prod(sizes) != DEVICES:
        raise ValueError(
            f"A mesh must be two sizes whose product is {DEVICES}, but received {text!r}. Use 2x4."
        )
    return dict(zip(("batch", "model"), sizes, strict=True))


def arguments_of(constructor: Any, num_key_value_heads: int) -> dict[str, Any]:
    """Returns the sizes that a backbone's constructor has arguments for.

    >>> arguments_of(lambda num_layers, num_key_value_heads, dropout=0.0: None, 4)
    {'num_layers': 2, 'num_key_value_heads': 4}
    """
    sizes = {**SIZES, "num_key_value_heads": num_key_value_heads}
    named = inspect.signature(constructor).parameters
    return {name: sizes[name] for name in named if name in sizes}


def language_model(kind: Any, num_key_value_heads: int) -> Any:
    """Returns a compiled model that predicts words: a backbone, and its table of words again."""
    import keras

    backbone = kind(**arguments_of(kind.__init__, num_key_value_heads))
    stream = backbone.output
    if isinstance(stream, dict):
        stream = stream.get("decoder_sequence_output", stream.get("sequence_output"))
    table = getattr(backbone, "token_embedding", None)
    if table is not None and "reverse" in inspect.signature(table.call).parameters:
        logits = table(stream, reverse=True)
    else:
        logits = keras.layers.Dense(SIZES["vocabulary_size"], use_bias=False)(stream)
    model = keras.Model(backbone.input, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def layout_map_of(kind: Any, mesh: dict[str, int], num_key_value_heads: int) -> dict[str, Any]:
    """Returns the layouts that a backbone's own map has for its weights, by their paths.

    A pattern that no weight has is none of them: it is for layers that so small a backbone lacks.
    """
    import keras

    devices = [f"cpu:{number}" for number in range(DEVICES)]
    of_keras = keras.distribution.DeviceMesh(tuple(mesh.values()), [*mesh], devices)
    layout_map = kind.get_layout_map(of_keras)
    keras.backend.clear_session()  # layers' names begin anew
    paths = [each.path for each in kind(**arguments_of(kind.__init__, num_key_value_heads)).weights]
    return {path: layout_map[path] for path in paths if layout_map[path] is not None}


def facts(
    kind: Any, mesh: dict[str, int], layout_map: Any, num_key_value_heads: int, batch: list[int]
) -> dict[str, Any]:
    """Compiles a step, and returns the bytes that a device keeps, needs and is sent.

    Args:
      kind: The backbone's class.
      mesh: The sizes of the mesh's axes.
      layout_map: What `tfdp.XLAStrategy` is given.
      num_key_value_heads: Of attention whose queries share keys.
      batch: The rows of a batch, and their length.
    """
    import jax
    import keras
    import tensorflow as tf

    import tfdp

    keras.backend.clear_session()  # layers' names begin anew
    # KerasHub's maps shard weights along the batch as well.
    shard = "parameters" if layout_map == "auto" and mesh["batch"] > 1 else None
    devices = jax.devices()[:DEVICES]
    strategy = tfdp.XLAStrategy(devices, shard=shard, mesh=mesh, layout_map=layout_map)
    with strategy.scope():
        model = language_model(kind, num_key_value_heads)
    x = {name: tf.TensorSpec(batch, "int32") for name in model.input}
    found = strategy.compile_ahead(model, (x, tf.TensorSpec(batch, "int32")))
    variables = [each.value for each in [*model.weights, *model.optimizer.variables]]
    layout_of = strategy.extended.layouts.of_variable
    kept = (
        math.prod(layout_of(each).shard_shape(tuple(each.shape))) * each.dtype.size
        for each in variables
    )
    return {
        "full": sum(math.prod(each.shape) * each.dtype.size for each in variables),
        "state": sum(kept),
        "memory": found.memory_bytes,
        "sent": found.bytes_moved,
        "collectives": found.collectives,
        "layouts": found.layouts,
    }


def main() -> None:
    """Prints for each mesh the facts with KerasHub's layout map, if there is one, and "auto"."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backbone")
    parser.add_argument("meshes")
    parser.add_argument("key_value_heads", type=int)
    parser.add_argument("rows", type=int)
    parser.add_argument("length", type=int)
    parsed = parser.parse_args()
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES), "XLA_FLAGS": flags}
    import keras_hub

    kind = getattr(keras_hub.models, parsed.backbone)
    batch = [parsed.rows, parsed.length]
    found: dict[str, dict[str, Any]] = {}
    for text in parsed.meshes.split(","):
        mesh = mesh_of(text)
        maps: dict[str, Any] = {"auto": "auto"}
        if hasattr(kind, "get_layout_map"):
            maps = {"map": layout_map_of(kind, mesh, parsed.key_value_heads), **maps}
        found[text] = {}
        for how, layout_map in maps.items():
            try:
                found[text][how] = facts(kind, mesh, layout_map, parsed.key_value_heads, batch)
            except ValueError as error:
                found[text][how] = {"refused": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
