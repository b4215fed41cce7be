"""The machine and software of this process: versions, cores, memory, GPUs. Imports none of it."""

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import sys
from collections.abc import Mapping

_NVIDIA_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")
_CPU_INFO = pathlib.Path("/proc/cpuinfo")

# The distributions of a module that comes as several.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    "keras": ("keras", "keras-nightly"),
}


def versions() -> dict[str, str | None]:
    """Returns the versions of Python, tfdp, TensorFlow, Keras, NumPy, JAX; None if not installed.

    >>> sorted(versions())
    ['jax', 'keras', 'numpy', 'python', 'tensorflow', 'tfdp']
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "tfdp": sys.modules["tfdp"].__version__,
    }
    for module in ("tensorflow", "keras", "numpy", "jax"):
        found[module] = _version(module)
    return found


def cores() -> list[int]:
    """Returns the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_model() -> str | None:
    """Returns the processor's name; None if the system does not tell it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or None


def memory_bytes() -> int | None:
    """Returns the host's memory; None if the system does not tell it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def gpus() -> list[str]:
    """Returns the models of the host's GPUs that NVIDIA's driver shows, used or not."""
    try:
        folders = sorted(_NVIDIA_GPUS.iterdir())
    except OSError:
        return []
    return [_gpu_model(folder) for folder in folders]


def tensorflow_is_for_cpus() -> bool:
    """Returns whether the installed TensorFlow is the build that uses no GPU."""
    installed = {name for name in _DISTRIBUTIONS["tensorflow"] if _installed(name)}
    return bool(installed) and all(name.endswith("-cpu") for name in installed)


def plugin_of_jax(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns JAX's plugin for NVIDIA's GPUs, "name version"; None if it is not installed or used.

    >>> plugin_of_jax({"JAX_PLATFORMS": "cpu"})
    """
    platforms = [word for word in environ.get("JAX_PLATFORMS", "").split(",") if word]
    if platforms and not {"cuda", "gpu"} & set(platforms):
        return None
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        if _installed(name):
            return f"{name} {_installed(name)}"
    return None


def fast_kernels() -> dict[str, str]:
    """Returns the variable by which TensorFlow computes with oneDNN on the processors of PCs.

    TensorFlow itself turns oneDNN on only where it finds AVX512-VNNI or later instructions. With
    AVX2 alone a dense network of 12.6 million parameters took 0.45 of the time a step with it, a
    convolutional one 0.67, and MobileNetV2 as much as without (`benchmarks fit`). Results differ
    by rounding. TensorFlow reads the variable when it is imported.

    >>> set(fast_kernels()) <= {"TF_ENABLE_ONEDNN_OPTS"}
    True
    """
    measured = platform.machine().lower() in ("x86_64", "amd64")
    return {"TF_ENABLE_ONEDNN_OPTS": "1"} if measured else {}


def gpu_settings() -> dict[str, str]:
    """Returns the variables by which TensorFlow leaves others a place on GPUs.

    It takes all of a GPU's memory otherwise, and leaves none to NCCL; and what starts a GPU's work
    waits behind the host's. Without GPUs nothing reads them.

    >>> gpu_settings()
    {'TF_FORCE_GPU_ALLOW_GROWTH': 'true', 'TF_GPU_THREAD_MODE': 'gpu_private'}
    """
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_GPU_THREAD_MODE": "gpu_private"}


def nccl_version() -> str | None:
    """Returns the version of the NCCL that TensorFlow's build for GPUs came with, None if none."""
    return _installed("nvidia-nccl-cu12") or _installed("nvidia-nccl-cu13")


def short_device_name(device: str) -> str:
    """Returns a device's name without its process.

    >>> short_device_name("/job:worker/replica:0/task:1/device:CPU:0")
    'CPU:0'
    """
    return re.sub(r".*device:", "", device)


def _gpu_model(folder: pathlib.Path) -> str:
    try:
        found = re.search(r"^Model:\s*(.+)$", (folder / "information").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else "unknown"


def _installed(distribution: str) -> str | None:
    """Returns the version of a distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version(module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    for distribution in _DISTRIBUTIONS.get(module, (module,)):
        found = _installed(distribution)
        if found is not None:
            return found
    return "unknown"
