"""The NVIDIA GPUs that a process may use, and how the processes of one host share them.

They are counted without TensorFlow, by `nvidia-smi`: it comes with the driver, knows the parts into
which a GPU may be divided (MIG), and shows in a container or in a job's control group what may be
used there, where `/proc/driver/nvidia` shows all GPUs of the host.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

#: The variable by which CUDA is told the GPUs of a process.
VISIBLE = "CUDA_VISIBLE_DEVICES"

_ASK_SECONDS = 60.0
_LISTED = re.compile(
    r"^GPU (\d+):(?:.*\(UUID: (GPU-[^)]+)\))?|^\s+MIG .*\(UUID: (MIG-[^)]+)\)", re.MULTILINE
)


def visible(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the GPUs that CUDA would give to a process, by names that `VISIBLE` takes.

    Like CUDA, it stops at the first of the names that the user has set which is no GPU.

    Cost: a run of `nvidia-smi`, up to a second, on hosts that have it.
    """
    listed = _listed(environ)
    if not listed or VISIBLE not in environ:
        return listed
    found: list[str] = []
    for name in environ[VISIBLE].split(","):
        name = name.strip()
        is_index = name.isdecimal() and int(name) < len(listed)
        if not (is_index or name.startswith(("GPU-", "MIG-"))):
            break
        found.append(name)
    return found


def identities(numbers: Sequence[int], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the UUIDs of GPUs, which no two GPUs have, on whichever hosts.

    Cost: two runs of `nvidia-smi`, up to a second each, on hosts that have it.

    Args:
      numbers: The numbers of the GPUs, among those that CUDA shows to the process.
      environ: The environment of the process.

    Returns:
      The UUIDs of those GPUs that the driver names.
    """
    names, uuids = visible(environ), _uuids(environ)
    chosen = [names[number] for number in numbers if number < len(names)]
    # CUDA takes the beginning of a UUID for the whole.
    return [
        next((uuid for uuid in uuids.values() if uuid.startswith(name)), uuids.get(name, name))
        for name in chosen
        if name in uuids or not name.isdecimal()
    ]


def memory(environ: Mapping[str, str] = os.environ) -> dict[str, tuple[float, float]]:
    """Returns by UUID the free memory of the host's GPUs, and all of it, in MiB.

    Cost: a run of `nvidia-smi`, up to a second, on hosts that have it.
    """
    asked = "--query-gpu=uuid,memory.free,memory.total", "--format=csv,noheader,nounits"
    found = {}
    for line in _shown(environ, *asked).splitlines():
        uuid, *sizes = map(str.strip, line.split(","))
        if len(sizes) == 2 and all(size.isdecimal() for size in sizes):
            found[uuid] = float(sizes[0]), float(sizes[1])
    return found


def share(gpus: Sequence[T], place: int, processes: int, each: int | None = None) -> list[T]:
    """Returns one process' part of the GPUs of a host, which come to the processes in order.

    Args:
      gpus: The GPUs, at least as many as there are processes.
      place: The process' number among those of the host, from 0.
      processes: How many processes share them.
      each: How many one process gets; None for as many as all can have alike.

    >>> [share(["0", "1", "2", "3"], place, processes=2) for place in range(2)]
    [['0', '1'], ['2', '3']]
    >>> share(["0", "1", "2", "3"], 2, processes=3)
    ['2']
    """
    each = len(gpus) // processes if each is None else each
    return list(gpus[place * each : (place + 1) * each])


def _listed(environ: Mapping[str, str]) -> list[str]:
    """Returns all GPUs that the driver shows: their numbers, or else the names of their parts."""
    found: list[str] = []
    divided: set[str] = set()
    for number, _, part in _LISTED.findall(_shown(environ)):
        if part and found and found[-1].isdecimal():
            divided.add(found[-1])
        found.append(number or part)
    return [name for name in found if name not in divided]


def _uuids(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the UUIDs of the GPUs that the driver shows, by number."""
    return {number: uuid for number, uuid, _ in _LISTED.findall(_shown(environ)) if uuid}


def _shown(environ: Mapping[str, str], *asked: str) -> str:
    """Returns the driver's list of GPUs, or what is asked of them; nothing on a host without it."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *(asked or ("-L",))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # A driver without a GPU, or one that does not run, says so with another exit code.
    return done.stdout if done.returncode == 0 else ""
