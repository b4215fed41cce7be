"""The names of the memory that MPICH's ranks share, which would outlive ranks that are killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re

_MAPS = pathlib.Path("/proc/self/maps")
_SHARED = re.compile(r" (/dev/shm/mpich_shm_\w+)$", re.MULTILINE)


def remove_names(maps: pathlib.Path = _MAPS) -> None:
    """Removes the names of MPICH's shared memory that this process has mapped.

    MPICH keeps a name, and with it 1 MB for each rank, until MPI is finalised, which a rank that
    fails never does. Once MPI is initialised every rank of the host has the memory, and nobody
    asks for it by its name; the kernel frees memory without a name when its last process ends.

    Args:
      maps: The file with the process' mappings, as Linux has it.
    """
    with contextlib.suppress(OSError):  # no such file outside Linux, or another rank was faster
        for name in sorted(set(_SHARED.findall(maps.read_text()))):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
