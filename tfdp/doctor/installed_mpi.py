"""The line about the installed MPI, which `tfdp run --engine mpi` would use."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tfdp.cluster.mpi import without_rank
from tfdp.cluster.mpi_installation import check_fit, find_library, find_mpiexec, thread_level
from tfdp.errors import ClusterError


def mpi_line(environ: Mapping[str, str]) -> str:
    """Returns what is installed, or why ranks cannot use it and the fix.

    Cost: three short processes, some 0.5 s.

    Args:
      environ: The environment of this process, which may be a rank of MPI.
    """
    environ = without_rank(environ)
    try:
        launcher = find_mpiexec(environ)
        library = find_library(sys.executable, environ)
        check_fit(launcher, library)
    except ClusterError as error:
        return f"MPI:      not for `tfdp run --engine mpi`: {error}"
    return (
        f"MPI:      {launcher.path} of {launcher.vendor}, mpi4py {library.mpi4py} on "
        f"{library.vendor} {library.version}, "
        f"{thread_level(sys.executable, environ) or 'which cannot be initialised'}"
    )
