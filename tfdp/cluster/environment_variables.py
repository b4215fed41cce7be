"""Environment variables: whole numbers that are checked, and the address that a user may set."""

import zlib
from collections.abc import Mapping

from tfdp.cluster.spec import split_address
from tfdp.errors import ClusterError

COORDINATOR = "TFDP_COORDINATOR"

# Above the ports of known services, below the end of the range that kernels assign themselves.
_PORTS = range(20000, 60000)


def integer(environ: Mapping[str, str], name: str, at_least: int = 0) -> int:
    """Returns the value of variable `name`, a whole number of at least `at_least`.

    Raises:
      ClusterError: The variable is missing or holds something else.

    >>> integer({"PMI_RANK": "3"}, "PMI_RANK")
    3
    """
    text = environ.get(name)
    if text is None:
        raise ClusterError(
            f"`{name}` must be set where the other variables of its launcher are, but it is "
            "missing. Pass the launcher's whole environment on to the process."
        )
    if not (text.isascii() and text.isdigit() and int(text) >= at_least):
        raise ClusterError(
            f"`{name}` must be a whole number of at least {at_least}, but is {text!r}. "
            "Leave it as the launcher sets it, or unset it to train in one process."
        )
    return int(text)


def rank_and_size(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """Returns rank and world size from two variables.

    Raises:
      ClusterError: A variable is missing or no number, or the rank is not below the world size.

    >>> rank_and_size({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI_RANK", "PMI_SIZE")
    (1, 2)
    """
    size = integer(environ, size_name, at_least=1)
    rank = integer(environ, rank_name)
    if rank >= size:
        raise ClusterError(
            f"`{rank_name}` must be below `{size_name}`={size}, but is {rank}. Start all processes "
            "with one launcher, and unset what another one left in the environment."
        )
    return rank, size


def chosen_coordinator(environ: Mapping[str, str], rank: int) -> str | None:
    """Returns Rank 0's address if the user has set `TFDP_COORDINATOR`, else None.

    Raises:
      ClusterError: The variable is not host:port.

    >>> chosen_coordinator({"TFDP_COORDINATOR": "node-1:23456"}, rank=3)
    'node-1:23456'
    """
    address = environ.get(COORDINATOR)
    if address:
        split_address(address, f"Rank {rank}: `{COORDINATOR}`")
    return address or None


def derived_port(*shared: object) -> int:
    """Returns a port from 20000 to 59999 that is derived from values which all ranks share.

    The port is not reserved: another program may have it. `TFDP_COORDINATOR` then gives another.

    >>> derived_port("slurm", 4711, 0)
    22413
    """
    text = " ".join(str(value) for value in shared)
    return _PORTS[zlib.crc32(text.encode()) % len(_PORTS)]
