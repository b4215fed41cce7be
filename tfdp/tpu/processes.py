"""The processes that have JAX's devices, which tell each other on a board what is no tensor."""

from __future__ import annotations

import atexit
import functools
import json
import socket
from importlib import metadata

import numpy as np

from tfdp.cluster import secret
from tfdp.cluster.board import Board
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.spec import Cluster, host_of, join_address
from tfdp.collectives import introductions
from tfdp.collectives.meetings import Meetings
from tfdp.replicas import OneProcess, ProcessGroup
from tfdp.tpu._jax import coordinator_address, jax
from tfdp.tpu.arrays import of_first

_STARTUP_SECONDS, _TIMEOUT_SECONDS = 300.0, 600.0

# The bytes in which process 0 tells where it listens.
_MOST_BYTES = 1024


class Processes(Meetings, OneProcess):
    """All of JAX's processes, with this one among them.

    Tensors travel in programs. A process is lost to the others with its connection, and every wait
    has a deadline.

    Args:
      local_size: The number of devices of each process.
    """

    def __init__(self, local_size: int) -> None:
        super().__init__(local_size)
        self.rank, self.world_size = jax.process_index(), jax.process_count()
        address, made = self._of_first()
        cluster = Cluster(self.rank, self.world_size, address, source="jax.distributed")
        own = introductions.own(local_size)
        own["versions"] |= {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
        shared = secret.in_environment() or made
        meeting = meet(cluster, own, introductions.difference, _STARTUP_SECONDS, shared)
        self.hosts = meeting.host_numbers
        self.board = Board(self.rank, self.world_size, meeting.connections, _TIMEOUT_SECONDS)
        atexit.register(self.board.close)

    def _of_first(self) -> list[str]:
        """Returns where process 0 listens, and a secret for processes that have none."""
        told = np.zeros(_MOST_BYTES, np.uint8)
        if self.rank == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                port = free.getsockname()[1]
            address = join_address(host_of(str(coordinator_address())), port)
            text = json.dumps([address, secret.made()]).encode()
            told[: len(text)] = np.frombuffer(text, np.uint8)
        found: list[str] = json.loads(of_first(told).tobytes().rstrip(b"\0"))
        return found


@functools.cache
def joined(local_size: int) -> ProcessGroup:
    """Returns JAX's processes, which meet in the first call; all must call it together.

    Args:
      local_size: The number of devices of each process.

    Raises:
      ClusterError: They do not come, or have other versions.
    """
    return OneProcess(local_size) if jax.process_count() == 1 else Processes(local_size)
