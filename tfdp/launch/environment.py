"""What the launcher sets in the environment of each rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from tfdp.cluster.run_status import STATUS_VARIABLE
from tfdp.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdp.launch.ports import LOOPBACK

DEVICES_VARIABLE = "TFDP_DEVICES_PER_PROCESS"

# TensorFlow's default, one per core, can starve the iterators of several devices on two cores.
_MIN_INTEROP_THREADS = 8
_INTEROP_THREADS_PER_DEVICE = 4

# glibc gives back every freed block of this size or more to the kernel, and the next step pays a
# page fault for each 4 KiB of its gradients.
_MALLOC_KEEPS_BYTES = 2**30


def tf_config(ports: Sequence[int], rank: int) -> str:
    """The `TF_CONFIG` of one rank of a cluster on this host.

    Example:
        >>> tf_config([20000, 20001], rank=1)
        '{"cluster": {"worker": ["127.0.0.1:20000", "127.0.0.1:20001"]},
          "task": {"type": "worker", "index": 1}}'
    """
    workers = [f"{LOOPBACK}:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rank_environment(
    ports: Sequence[int],
    rank: int,
    devices_per_process: int | None = None,
    status_folder: str | None = None,
    environ: Mapping[str, str] = os.environ,
    secret: str | None = None,
) -> dict[str, str]:
    """What is added or changed for one rank.

    `TF_CONFIG` replaces the launcher's own and goes before what MPI or Slurm say. Thread counts
    and allocator settings yield to those that the user has set.

    Args:
        ports: one per rank.
        rank: whose environment.
        devices_per_process: logical CPU devices, or None to leave that alone.
        status_folder: where the strategy leaves word that it was made.
        environ: the launcher's environment.
        secret: what the ranks of this run know, in place of one that the user has set.

    Example:
        >>> added = rank_environment([20000], 0, environ={"OMP_NUM_THREADS": "3"})
        >>> added["TF_NUM_INTEROP_THREADS"], "OMP_NUM_THREADS" in added
        ('8', False)
    """
    share = str(max(1, available_cores() // len(ports)))
    interop = max(_MIN_INTEROP_THREADS, _INTEROP_THREADS_PER_DEVICE * (devices_per_process or 1))
    defaults = {
        "MALLOC_MMAP_THRESHOLD_": str(_MALLOC_KEEPS_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(_MALLOC_KEEPS_BYTES),
        "OMP_NUM_THREADS": share,
        "PYTHONUNBUFFERED": "1",
        "TF_NUM_INTEROP_THREADS": str(interop),
        "TF_NUM_INTRAOP_THREADS": share,
    }
    added = {name: value for name, value in defaults.items() if name not in environ}
    added["TF_CONFIG"] = tf_config(ports, rank)
    if devices_per_process is not None:
        added[DEVICES_VARIABLE] = str(devices_per_process)
    if status_folder is not None:
        added[STATUS_VARIABLE] = status_folder
    if secret is not None:
        added[SECRET_VARIABLE] = secret
    return added
