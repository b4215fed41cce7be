"""How the process was started: its command and what of its environment matters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
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

# Those of Terraform, which may be secret, and what TensorFlow sets for itself.
_NOT_OURS = ("TF_CLI_", "TF_VAR_", "TPU_ML_")

_SECRET = re.compile(r"AUTH|CREDENTIAL|KEY|PASS|SECRET|SIGNATURE|TOKEN", re.IGNORECASE)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(=?)")
_ASSIGNED = re.compile(r"([A-Za-z]\w*)=")
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")

MASK = "***"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what TensorFlow, Keras, tfdp or their threads and memory do.

    None whose name speaks of a secret is among them, and addresses lose their user and password.

    Example:
        >>> environment({"TF_NUM_INTEROP_THREADS": "8", "HOME": "/root", "KERAS_API_KEY": "x"})
        {'TF_NUM_INTEROP_THREADS': '8'}
    """
    return {
        name: _USER_IN_ADDRESS.sub("", environ[name])
        for name in sorted(environ)
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not (name.startswith(_NOT_OURS) or _SECRET.search(name))
    }


def command(words: Sequence[str]) -> list[str]:
    """The words of a command line without what is given to options that speak of a secret.

    Example:
        >>> command(["train.py", "--api-key", "x", "--token=x", "--epochs", "3"])
        ['train.py', '--api-key', '***', '--token=***', '--epochs', '3']
    """
    shown: list[str] = []
    mask_next = False
    for word in words:
        option = _OPTION.match(word) or _ASSIGNED.match(word)
        if mask_next and not word.startswith("-"):
            shown.append(MASK)
            mask_next = False
            continue
        secret = option is not None and _SECRET.search(option[1]) is not None
        assigned = secret and option is not None and word[option.end() - 1] == "="
        if assigned and option is not None:
            shown.append(word[: option.end()] + MASK)
        else:
            shown.append(_USER_IN_ADDRESS.sub("", word))
        mask_next = secret and not assigned
    return shown
