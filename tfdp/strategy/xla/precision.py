"""The precision of float32 products and convolutions, as the user's settings ask.

The operands' precision in the program says it, one of three levels that XLA's compilers read:

    level     CPU       NVIDIA's GPUs from Ampere on   TPUs
    DEFAULT   float32   TensorFloat-32                 bfloat16
    HIGH      float32   TensorFloat-32                 bfloat16, in three passes
    HIGHEST   float32   float32                        bfloat16, in six passes

Convolutions have no other attribute for it; and for products alone a compiler need not take each
`dot_algorithm` that StableHLO can write.
"""

import collections
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.strategy.xla._jax import ir, jax, operations_of

LEVELS = ("DEFAULT", "HIGH", "HIGHEST")

# How many products and convolutions there are of each dtype and level.
Products = Mapping[tuple[str, str], int]

# What JAX's setting may be, and what it means for operands of 32 bits.
_OF_JAX: dict[str | None, str] = {
    None: "DEFAULT",
    **dict.fromkeys(("default", "fastest", "bfloat16"), "DEFAULT"),
    **dict.fromkeys(("high", "tensorfloat32", "bfloat16_3x"), "HIGH"),
    **dict.fromkeys(("highest", "float32", "F32_F32_F32"), "HIGHEST"),
}

_COMPUTED_IN = {
    "gpu": {"DEFAULT": "TF32", "HIGH": "TF32"},
    "tpu": {"DEFAULT": "bfloat16", "HIGH": "bfloat16 x 3", "HIGHEST": "bfloat16 x 6"},
}

_OPERATIONS = ("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution")
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"complex<f32>": "float32", "complex<f64>": "float64"}  # what their parts are


def asked() -> str:
    """Returns the level that the settings ask for, the higher one of TensorFlow's and of JAX's.

    TensorFlow's is `tf.config.experimental.enable_tensor_float_32_execution`: HIGHEST where it is
    off. JAX's is `jax_default_matmul_precision`.

    Raises:
      ValueError: JAX's is an algorithm of products, which convolutions have not.

    >>> with jax.default_matmul_precision("float32"):
    ...     asked()
    'HIGHEST'
    """
    config: Any = jax.config  # whose names are made at its import
    of_jax = config.jax_default_matmul_precision
    if of_jax not in _OF_JAX:
        raise ValueError(
            "`jax_default_matmul_precision` must be a level for products and convolutions, but is "
            f'{of_jax!r}, an algorithm for products. Use "default", "high" or "highest".'
        )
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    of_tensorflow = "DEFAULT" if enabled else "HIGHEST"
    return max(of_tensorflow, _OF_JAX[of_jax], key=LEVELS.index)


def raise_precision(module: Any, level: str) -> Products:
    """Gives a module's products of float32 their precision, and returns these.

    What a program asks for itself is left where it is higher.

    Args:
      module: The module.
      level: One of `LEVELS`.
    """
    products: collections.Counter[tuple[str, str]] = collections.Counter()
    for operation in operations_of(module, _OPERATIONS):
        dtype, given = _dtype(operation), _level(operation)
        if dtype == "float32" and LEVELS.index(given) < LEVELS.index(level):
            each = f"#stablehlo<precision {level}>"
            operation.attributes["precision_config"] = ir.Attribute.parse(f"[{each}, {each}]")
            given = level
        products[dtype, given] += 1
    return products


def computed_in(products: Products, platform: str) -> dict[str, int]:
    """Returns what products and convolutions are computed in, and how many of them.

    Args:
      products: See `raise_precision`.
      platform: The kind of the devices, as JAX names it: "cpu", "gpu" or "tpu".

    >>> computed_in({("float32", "HIGHEST"): 3, ("bfloat16", "DEFAULT"): 2}, "tpu")
    {'bfloat16 x 6': 3, 'bfloat16': 2}
    """
    names = _COMPUTED_IN.get(platform, {})
    found: collections.Counter[str] = collections.Counter()
    for (dtype, level), count in products.items():
        found[names.get(level, dtype) if dtype == "float32" else dtype] += count
    return dict(found)


def _dtype(operation: Any) -> str:
    """Returns the wider dtype of a product's operands."""
    kinds = [str(ir.RankedTensorType(each.type).element_type) for each in operation.operands]
    names = [_DTYPES.get(kind, kind) for kind in kinds]
    return "float32" if "float32" in names else names[0]


def _level(operation: Any) -> str:
    """Returns the lower level of a product's operands."""
    if "precision_config" not in operation.attributes:
        return LEVELS[0]
    config = ir.ArrayAttr(operation.attributes["precision_config"])
    given = [str(each).removesuffix(">").split()[-1] for each in config]
    return min(given, key=LEVELS.index, default=LEVELS[0])
