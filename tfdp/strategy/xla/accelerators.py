"""The accelerators of this host, counted before JAX starts, and other users of them."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.base import gpus, machine
from tfdp.base.warn_once import warn_once
from tfdp.cluster.environment import own_gpus
from tfdp.strategy.replica_devices import DEVICES_PER_PROCESS, per_process
from tfdp.strategy.xla._jax import backend_has_started, jax

# What JAX takes of a GPU's memory as it starts, unless it is told another part.
_FRACTION = 0.75

# The variables by which JAX itself is told the GPUs of a process.
_CHOSEN = "JAX_LOCAL_DEVICE_IDS", "JAX_CUDA_VISIBLE_DEVICES"

_PREALLOCATES, _MEMORY = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def gpus_of_host(environ: Mapping[str, str] = os.environ) -> list[int]:
    """Returns the numbers, among those that CUDA shows, of the GPUs that JAX will use here.

    Where MPI or Slurm started several processes on a host, these are the share of this one. None
    are used without JAX's plugin, or where JAX was told other platforms.

    Cost: a run of `nvidia-smi`, up to a second, on hosts that have it.

    Args:
      environ: The environment of the process.
    """
    if machine.plugin_of_jax({"JAX_PLATFORMS": platforms()}) is None:
        return []
    every = list(range(len(gpus.visible(environ))))
    chosen = next((environ[name] for name in _CHOSEN if environ.get(name, "all") != "all"), None)
    if chosen is not None:
        return [int(number) for number in chosen.split(",")]
    return own_gpus(every, environ) or every


def split_cpu() -> None:
    """Has JAX make as many devices of the CPU as `tfdp run --devices-per-process` asks for.

    Whoever has told JAX is followed.

    Raises:
      ValueError: JAX has started with others, or the number is none.
    """
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    told = told or getattr(jax.config, "jax_num_cpu_devices", -1) >= 0
    if told or DEVICES_PER_PROCESS not in os.environ:
        return
    if not backend_has_started():
        jax.config.update("jax_num_cpu_devices", per_process())
    elif jax.default_backend() == "cpu" and jax.local_device_count() != per_process():
        raise ValueError(
            f"{DEVICES_PER_PROCESS}={per_process()} must be known before JAX is used, but it has "
            f"started with {jax.local_device_count()}. Make `tfdp.XLAStrategy()` the first thing "
            "after the imports, or set JAX_NUM_CPU_DEVICES instead."
        )


def check_there(devices: list[Any], environ: Mapping[str, str] = os.environ) -> None:
    """Checks that JAX has not taken the CPU because it cannot use the GPU beside it.

    Args:
      devices: The devices that JAX has found.
      environ: The environment of the process.

    Raises:
      ImportError: There is a GPU and JAX has no plugin for it, or none that works.
    """
    if devices[0].platform != "cpu" or platforms():
        return
    count = len(gpus.visible(environ))
    if not count:
        _warn_of_cpu(devices)
        return
    plugin = machine.plugin_of_jax(environ)
    found = "no plugin for it" if plugin is None else f"{plugin}, which found none"
    install = (
        "Install it: `pip install 'tfdp[xla-cuda13]'`, or `[xla-cuda12]` for a driver before 580."
        if plugin is None
        else "`python -c \"import jax; jax.devices('cuda')\"` says why."
    )
    raise ImportError(
        f"JAX must be able to use the GPU that it runs beside, but `nvidia-smi` shows {count} and "
        f"JAX has {found}. {install} To train on the CPU of this host set JAX_PLATFORMS=cpu."
    )


def _warn_of_cpu(devices: list[Any]) -> None:
    if len(devices) == 1:
        logging.getLogger("tfdp").warning(
            "JAX has found no GPU and no TPU: the host's CPU takes its place, as one device. On a "
            "host with TPUs `pip install 'jax[tpu]'` has what finds them. To try several devices "
            "without, start with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8."
        )


def leave_to_jax() -> None:
    """Hides GPUs from TensorFlow's build for them, which would take memory there; says so once.

    Raises:
      ValueError: TensorFlow has them already, with all of their memory.
    """
    visible = tf.config.get_visible_devices("GPU")
    if not visible:
        return
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        if all(map(_grows, visible)):
            return
        raise ValueError(
            "GPUs must be left to JAX, but TensorFlow has started with "
            f"{len(visible)} of them and takes all of their memory. Make `tfdp.XLAStrategy()` the "
            "first thing after the imports, or call `tf.config.set_visible_devices([], 'GPU')` "
            "there. Where TensorFlow is to compute on them as well, let both take what they need: "
            f"TF_FORCE_GPU_ALLOW_GROWTH=true {_PREALLOCATES}=false."
        ) from error
    warn_once(
        "The GPUs are JAX's under XLAStrategy: they are hidden from TensorFlow, which would take "
        "their memory. `pip install tensorflow-cpu` in its place has nothing to hide."
    )


def _grows(gpu: Any) -> bool:
    by_environment = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    return by_environment or bool(tf.config.experimental.get_memory_growth(gpu))


def check_memory(numbers: list[int], environ: Mapping[str, str] = os.environ) -> None:
    """Warns where others have so much of a GPU's memory that JAX will not get what it takes.

    It is of use before JAX starts, which takes three quarters of all at once.

    Args:
      numbers: The GPUs, as of `gpus_of_host`.
      environ: The environment of the process.
    """
    preallocates = environ.get(_PREALLOCATES, "true").lower() not in ("false", "0")
    if not numbers or not preallocates or environ.get("XLA_PYTHON_CLIENT_ALLOCATOR"):
        return
    fraction = float(environ.get(_MEMORY) or _FRACTION)
    known = gpus.memory(environ)
    for uuid in gpus.identities(numbers, environ):
        free, total = known.get(uuid, (0.0, 0.0))
        if free < fraction * total:
            logging.getLogger("tfdp").warning(
                "JAX takes %.0f of the %.0f MiB of %s as it starts, but %.0f are free: another "
                "process, or TensorFlow in this one, has the rest. End what `nvidia-smi` names, "
                "make `tfdp.XLAStrategy()` before TensorFlow is used, or set %s=%.2f, or %s=false "
                "to take memory as it is needed.",
                *(fraction * total, total, uuid, free),
                *(_MEMORY, 0.9 * free / total, _PREALLOCATES),
            )


def platforms() -> str:
    """Returns what JAX was told to run on, "" if nothing."""
    return str(getattr(jax.config, "jax_platforms", None) or "")
