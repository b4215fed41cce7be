"""A transport in memory: what a process sends is kept until another receives it."""

import collections
import threading


class Memory:
    """What was sent and not yet received, and the bytes of each message, with who sent it to whom.

    Attributes:
      sizes: The bytes of each message.
      ends: The processes that sent and received it.
    """

    def __init__(self):
        self.sent = collections.defaultdict(collections.deque)
        self.sizes = []
        self.ends = []
        self.lock = threading.Lock()


class MemoryTransport:
    """The transport of one process.

    Args:
      memory: What all processes share.
      process: The number of this process.
      tags: The number of tags.
    """

    def __init__(self, memory, process, tags=2**40):
        self.tags, self._memory, self._process = tags, memory, process

    def send(self, array, target, tag):
        assert 0 <= tag < self.tags
        with self._memory.lock:
            self._memory.sent[self._process, target, tag].append(array.copy())
            self._memory.sizes.append(array.nbytes)
            self._memory.ends.append((self._process, target))
        return Sent()

    def receive(self, array, source, tag):
        return Received(self._memory, array, (source, self._process, tag))

    def has_arrived(self, source, tag):
        with self._memory.lock:
            return bool(self._memory.sent[source, self._process, tag])


class Sent:
    def done(self):
        return True


class Received:
    def __init__(self, memory, array, place):
        self._memory, self._array, self._place = memory, array, place
        self._done = False

    def done(self):
        with self._memory.lock:
            if not self._done and self._memory.sent[self._place]:
                arrived = self._memory.sent[self._place].popleft()
                assert arrived.nbytes == self._array.nbytes
                self._array.reshape(-1)[:] = arrived.reshape(-1)
                self._done = True
        return self._done
