"""The start of the process: its command, and the part of its environment that matters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tfdp.callbacks.manifest.masks import MASK, is_secret, masked

_PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "JAX_",
    "KERAS_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "TFDP_",
    "TF_",
    "TPU_",
    "XLA_",
)
_NAMES = (
    "LD_PRELOAD",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PYTHONHASHSEED",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
)

# Terraform's variables, which may be secret, and those that TensorFlow sets for itself.
_NOT_OURS = ("TF_CLI_", "TF_VAR_", "TPU_ML_")

# Hydra's names begin with a sign, and have dots, slashes, `@` and indices.
_ASSIGNED = re.compile(r"""([^\s=?&#:"'(){},]+)=""")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that change what TensorFlow, Keras, tfdp, threads and memory do.

    Variables whose name speaks of a secret are left out, and the texts are as `masked` returns
    them.

    >>> environment({"TF_NUM_INTEROP_THREADS": "8", "HOME": "/root", "KERAS_API_KEY": "x"})
    {'TF_NUM_INTEROP_THREADS': '8'}
    """
    return {
        name: masked(environ[name])
        for name in sorted(environ)
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not (name.startswith(_NOT_OURS) or is_secret(name))
    }


def command(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with the values masked whose names speak of a secret.

    Names are those of options, assignments and headers, and what `masked` finds within a word.

    >>> command(["train.py", "--api-key", "x", "--token=x", "--epochs", "3"])
    ['train.py', '--api-key', '***', '--token=***', '--epochs', '3']
    """
    shown: list[str] = []
    mask_next = False
    for word in words:
        # A secret may begin with one `-`, but two begin an option: the option before was given
        # nothing.
        if mask_next and not word.startswith("--"):
            shown.append(MASK)
            mask_next = False
            continue
        named = _ASSIGNED.match(word) or _HEADER.match(word)
        if named is not None and is_secret(named[1]):
            shown.append(word[: named.end()] + MASK)
        else:
            shown.append(masked(word))
        mask_next = _OPTION.fullmatch(word) is not None and is_secret(word)
    return shown
