"""Ranks placed on simulated hosts, and the bytes that these hosts' links have sent.

    tfdp run -n 4 -- python -m benchmarks.on_host NAME,NAME 0,0,1,1 python train.py

runs `train.py` in four ranks, the first two in the namespace that is named first, and the others in
the second. `benchmarks.hosts` makes the namespaces.
"""

import json
import os
import pathlib
import sys
from collections.abc import Sequence

from benchmarks import hosts

_PORT = 20870
_HOST = "TFDP_BENCHMARKS_HOST"

# MPICH takes all ranks for those of one host, since one launcher started them, and would use shared
# memory. These keep it on the links, whether it was built with UCX or with libfabric.
_BETWEEN_HOSTS = {
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": hosts.INTERFACE,
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": hosts.INTERFACE,
}


def on_hosts(
    namespaces: Sequence[str], host_of_ranks: Sequence[int], command: Sequence[str]
) -> list[str]:
    """Returns `command` as one that each rank runs on its host.

    Args:
      namespaces: The namespaces of the hosts; empty for ranks that stay where they are.
      host_of_ranks: For each rank the index of its host.
      command: The words of the command.

    >>> on_hosts(["h0", "h1"], [0, 1, 1], ["hostname"])[2:]
    ['benchmarks.on_host', 'h0,h1', '0,1,1', 'hostname']
    >>> on_hosts([], [0, 1, 1], ["hostname"])
    ['hostname']
    """
    if not namespaces:
        return list(command)
    places = ",".join(namespaces), ",".join(map(str, host_of_ranks))
    return [sys.executable, "-m", "benchmarks.on_host", *places, *command]


def addresses(host_of_ranks: Sequence[int]) -> list[str]:
    """Returns for each rank the address of its host, and a port of its own.

    >>> addresses([0, 1, 1])
    ['10.77.0.1:20870', '10.77.0.2:20871', '10.77.0.2:20872']
    """
    return [f"{hosts.address(host)}:{_PORT + rank}" for rank, host in enumerate(host_of_ranks)]


def is_on_host() -> bool:
    """Returns whether :func:`main` has brought this process to a host."""
    return _HOST in os.environ


def bytes_sent() -> int:
    """Returns the bytes that the host of this process has sent over its link so far.

    Raises:
      HostsError: The process is on no host that `benchmarks.hosts` has made.
    """
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        interface, _, counts = line.strip().partition(":")
        if interface == hosts.INTERFACE:
            return int(counts.split()[8])
    raise hosts.HostsError(
        f"The host of this process must have the link {hosts.INTERFACE}, but has none; start the "
        "process by `benchmarks.on_host`."
    )


def main() -> None:
    """Enters the rank's host and goes on there as the command."""
    namespaces, host_of_ranks, *command = sys.argv[1:]
    places = [int(place) for place in host_of_ranks.split(",")]
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = addresses(places)
    os.environ["TF_CONFIG"] = json.dumps(config)
    os.environ.update(_BETWEEN_HOSTS)
    host = namespaces.split(",")[places[config["task"]["index"]]]
    os.environ[_HOST] = host
    entered = hosts.inside(host, command)
    os.execvp(entered[0], entered)


if __name__ == "__main__":
    main()
