"""The private names of jaxlib, each with its reason, and the import of JAX, which is an extra.

Tested with jax and jaxlib 0.8.3, 0.10.2 and 0.11.2. `tests/strategy/xla/test_jax.py` fails when one
of them moves.
"""

import logging
from collections.abc import Container, Sequence
from typing import Any

from tfdp.strategy.xla import gpu_kinds

_INSTALL = "Install it: `pip install 'jax[tpu]>=0.8,<0.12'`, or without `[tpu]` for CPU devices."

try:
    import jax

    # What `jax.distributed.initialize` was given, or found: no public name tells it.
    from jax._src import distributed

    # The class of the client of devices that are described only; no public name tells them.
    from jax._src.lib import _jax as jaxlib_classes

    # Turns a serialized HLO module, TensorFlow's, into one of StableHLO; public
    # functions of JAX make modules of Python functions alone.
    from jax._src.lib import xla_client

    # Whether JAX's runtime has started, after which processes cannot join: no public name tells it
    # without starting it.
    from jax._src.xla_bridge import backends_are_initialized as backend_has_started
    from jax.experimental import topologies
    from jax.interpreters.mlir import make_ir_context, merge_mlir_modules, register_lowering
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, sdy, stablehlo
except ImportError as error:
    raise ImportError(
        "XLAStrategy needs JAX, whose runtime runs its programs, but it cannot be imported "
        f"({error}). {_INSTALL}"
    ) from error

__all__ = [
    "are_described",
    "backend_has_started",
    "check_version",
    "compiled_for_memory",
    "coordinator_address",
    "described",
    "func",
    "hlo_text",
    "ir",
    "jax",
    "main_of",
    "make_ir_context",
    "merge_mlir_modules",
    "operations_of",
    "register_lowering",
    "sdy",
    "stablehlo",
    "stablehlo_module",
]


def check_version(version: str) -> None:
    """Checks that a version of JAX is one that does; a newer one than was tested is said.

    Raises:
      ImportError: It is older than what public names are used of.

    >>> check_version("0.7.2")
    Traceback (most recent call last):
        ...
    ImportError: XLAStrategy needs jax 0.8 or newer, but jax 0.7.2 is installed. ...
    """
    found = tuple(map(int, version.split(".")[:2]))
    if found < (0, 8):
        raise ImportError(
            f"XLAStrategy needs jax 0.8 or newer, but jax {version} is installed. {_INSTALL}"
        )
    if found > (0, 11):
        logging.getLogger("tfdp").warning(
            "XLAStrategy was tested with jax 0.8 to 0.11, but jax %s is installed. If it fails, "
            "install one of these.",
            version,
        )


check_version(jax.__version__)


def hlo_text(serialized: bytes) -> str:
    """Returns a serialized HLO module as text; each instruction tells its operation's name."""
    return xla_client.XlaComputation(serialized).get_hlo_module().to_string()


def stablehlo_module(serialized: bytes) -> Any:
    """Returns a serialized HLO module as one of StableHLO, parsed in the caller's context.

    TensorFlow copies what it writes to variables. StableHLO has no such operation, since its values
    are never written: they are left out, for XLA's compiler for TPUs takes no others. So is what
    sets a size to what it is already, as after the largest of some numbers were found.
    """
    module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(serialized))
    for operation in operations_of(module, ("mhlo.copy", "stablehlo.set_dimension_size")):
        given, result = operation.operands[0], operation.results[0]
        if operation.name == "mhlo.copy" or given.type == result.type:
            result.replace_all_uses_with(given)
            operation.erase()
    return module


def main_of(module: Any) -> Any:
    """Returns the function "main" of a parsed module."""
    return next(op for op in module.body.operations if ir.StringAttr(op.sym_name).value == "main")


def operations_of(module: Any, names: Container[str]) -> list[Any]:
    """Returns the operations of a parsed module that have one of these names, in its order.

    Args:
      module: The module, in whose context the caller is. It may be changed after that.
      names: Such as "stablehlo.while".
    """
    found: list[Any] = []

    def note(operation: Any) -> Any:
        if operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return found


# Of XLA's compiler for CPUs: operations in an order that needs little memory, not one in which many
# can run at a time, and no sum of all gradients in one, for which all would have to be there.
_FOR_MEMORY = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cpu-all-reduce-combiner",
}


def compiled_for_memory(lowered: Any) -> Any:
    """Returns a lowered program, compiled for CPU devices so that it needs little memory.

    A jaxlib that knows no such options compiles it as it does others.
    """
    try:
        return lowered.compile(compiler_options=_FOR_MEMORY)
    except jax.errors.JaxRuntimeError as error:
        if "xla_cpu_scheduler_type" not in str(error):
            raise
        return lowered.compile()


def described(topology: str) -> list[Any]:
    """Returns the devices of a topology that may not be there, to compile for.

    Args:
      topology: Its name, such as "v5e:2x4" of TPUs or "h100:8" of GPUs.

    Raises:
      ValueError: It cannot be described: libtpu or JAX's plugin for GPUs is not installed, or there
        is no such topology.
    """
    gpus = gpu_kinds.parsed(topology)
    try:
        if gpus is None:
            found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
        else:
            kind, counts = gpus
            found = topologies.get_topology_desc(
                platform="cuda",
                topology_name=topology,
                topology=counts,
                target_config=kind.target(),
            )
    except Exception as error:  # of many types, by where it stops
        said = str(error).split("\n", maxsplit=1)[0]
        if gpus is not None:
            raise ValueError(
                f"To compile for {topology!r}, JAX must have its plugin for NVIDIA's GPUs, but "
                f"says {said!r}. Install it, `pip install 'tfdp[xla-cuda12]'`, and set "
                "JAX_PLATFORMS=cpu where no GPU is."
            ) from error
        raise ValueError(
            "A topology must be one that libtpu knows, the kind of its chips and how many there "
            f"are along each axis, or GPUs ({', '.join(gpu_kinds.KINDS)}) and how many, but "
            f'received {topology!r} ({said}). Use one such as "v5e:2x4" or "h100:8"; libtpu comes '
            'with `pip install "jax[tpu]>=0.8,<0.12"`.'
        ) from error
    return list(found.devices)


def are_described(devices: Sequence[Any]) -> bool:
    """Returns whether devices are described only: programs are compiled for them, not run."""
    return isinstance(devices[0].client, jaxlib_classes.CompileOnlyPyClient)


def coordinator_address() -> str | None:
    """Returns the address of process 0, "host:port", at which JAX's processes have met, if any."""
    address: str | None = distributed.global_state.coordinator_address
    return address
