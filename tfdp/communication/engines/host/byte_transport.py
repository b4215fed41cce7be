"""The protocol of what moves bytes between processes: MPI, or whatever sends and receives."""

from typing import Protocol, TypeVar

import numpy as np

# The most slices of a buffer that crosses between hosts, each of which has a strand and tags of its
# own. A link has nothing to send before the first slice was summed within its host, nor while the
# last one is given to the host's ranks. Within a host more than `MOST_SLICES` cost more than that.
MOST_SLICES_BETWEEN_HOSTS = 12


class Request(Protocol):
    """A send or receive that was begun, and reads its array or writes to it until it is done."""

    def done(self) -> bool:
        """Moves bytes of any requests if it can, and returns whether nothing is left to do here.

        Raises:
          CollectiveMismatchError: Another number of bytes came than was to be received.
          Exception: What the transport raises where the other process is gone.
        """


RequestT_co = TypeVar("RequestT_co", bound=Request, covariant=True)


class ByteTransport(Protocol[RequestT_co]):
    """Sends and receives that return at once. Messages of one tag between two processes keep order.

    Arrays are contiguous. Several threads may call the methods at the same time.

    Attributes:
      tags: The number of tags; they are counted from 0.
    """

    tags: int

    def send(self, array: np.ndarray, target: int, tag: int) -> RequestT_co:
        """Begins to send the bytes of `array` to a process, which may be this one."""

    def receive(self, array: np.ndarray, source: int, tag: int) -> RequestT_co:
        """Begins to receive the bytes of `array` from a process, which may be this one."""

    def has_arrived(self, source: int, tag: int) -> bool:
        """Returns whether a message of a process is there, which no receive has taken."""


class Lane:
    """The sends and receives of one rank in one collective, which meet those of the same key alone.

    Ranks that call different collectives wait for each other, as they do on TensorFlow's engine,
    and a watchdog names them. With few tags, keys far apart may share one.

    Args:
      transport: Moves the bytes between processes.
      rank: The rank whose messages these are.
      local_size: The number of ranks per process.
      key: The number of the collective, the same on all ranks.
    """

    def __init__(
        self, transport: ByteTransport[Request], rank: int, local_size: int, key: int
    ) -> None:
        self.rank = rank
        self._transport = transport
        self._local_size = local_size
        per_key = MOST_SLICES_BETWEEN_HOSTS * local_size**2
        self._first_tag = key % (transport.tags // per_key) * per_key

    def send(self, array: np.ndarray, target: int, strand: int = 0) -> Request:
        """Begins to send `array` to a rank, which receives it in its strand of the same number."""
        process, tag = target // self._local_size, self._tag(self.rank, target, strand)
        return self._transport.send(array, process, tag)

    def receive(self, array: np.ndarray, source: int, strand: int = 0) -> Request:
        """Begins to receive `array` from a rank, which sends it in its strand of that number."""
        process, tag = source // self._local_size, self._tag(source, self.rank, strand)
        return self._transport.receive(array, process, tag)

    def _tag(self, source: int, target: int, strand: int) -> int:
        size = self._local_size
        return self._first_tag + (strand * size + source % size) * size + target % size


def all_done(requests: list[Request]) -> bool:
    """Takes away requests that are done, from the front on, and returns whether none is left."""
    while requests:
        if not requests[0].done():
            return False
        del requests[0]
    return True
