"""The private names of jaxlib, each with its reason, and the import of JAX, which is an extra.

Tested with jax and jaxlib 0.10.2. `tests/tpu/test_jax.py` fails when one of them moves.
"""

from __future__ import annotations

try:
    import jax

    # Turns a serialized HLO module, TensorFlow's, into the text of a StableHLO module; public
    # functions of JAX make modules of Python functions alone.
    from jax._src.lib import xla_client
    from jax.interpreters.mlir import make_ir_context, merge_mlir_modules, register_lowering
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func
except ImportError as error:
    raise ImportError(
        "TPUStrategy needs JAX, whose runtime runs its programs, but it cannot be imported "
        f"({error}). Install it with `pip install tfdp[tpu]`."
    ) from error

__all__ = [
    "func",
    "hlo_text",
    "ir",
    "jax",
    "make_ir_context",
    "merge_mlir_modules",
    "register_lowering",
    "stablehlo_text",
]


def hlo_text(serialized: bytes) -> str:
    """Returns a serialized HLO module as text; each instruction tells its operation's name."""
    return xla_client.XlaComputation(serialized).get_hlo_module().to_string()


def stablehlo_text(serialized: bytes) -> str:
    """Returns a serialized HLO module as the text of a StableHLO module."""
    computation = xla_client.XlaComputation(serialized)
    return xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
