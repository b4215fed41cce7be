"""Replicas without a strategy: what the others send is NumPy arrays that the test knows."""

import contextlib

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import OneProcess, ProcessGroup
from tfdp.compression.exchange import ExchangeOptions


class StandIn:
    """Replica `rank`, which meets others that send what `others` says.

    Args:
      rank: The number of the replica.
      others: For each sum, in the order of the calls, a list with what each other replica sends for
        each of the values.
    """

    def __init__(self, rank: int = 0, others=(), num_replicas: int = 2) -> None:
        self.rank, self.num_replicas = rank, num_replicas
        self.exchange = ExchangeOptions()
        self.processes: ProcessGroup = OneProcess(num_replicas)
        self._others = list(others)
        self.sent: list[list[np.ndarray]] = []
        self.within: list[str] = []

    def sum(self, values):
        self.sent.append([np.asarray(value) for value in values])
        others = self._others.pop(0)
        return [
            tf.constant(np.sum([own, *(other[index] for other in others)], 0), own.dtype)
            for index, own in enumerate(self.sent[-1])
        ]

    def sum_without_gradient(self, values, merge_rows=False, compress=False):
        return self.sum(values)

    def sum_by(self, compress, tensors, payload_bytes):
        raise NotImplementedError

    def sum_of_neighbours(self, tensors, distances):
        raise NotImplementedError

    def sum_of_first(self, values, rows, all_rows):
        raise NotImplementedError

    def dropped_examples(self):
        return None

    def parted(self, variable, sharding):
        raise NotImplementedError

    def held_whole(self, variables):
        raise NotImplementedError

    def broadcast_from_first(self, value, dtype):
        zero = tf.zeros_like(value)
        return self.sum([value if self.rank == 0 else zero])[0]

    def gather_rows(self, value):
        raise NotImplementedError

    @contextlib.contextmanager
    def _within(self, name):
        self.within.append(name)
        yield

    def identical_writes(self):
        return self._within("identical_writes")

    def summed_on_read(self):
        return self._within("summed_on_read")

    def averaged_on_read(self):
        return self._within("averaged_on_read")

    def read_after_round(self):
        return self._within("read_after_round")

    def sums_read_once(self, shared):
        return self._within("sums_read_once")

    def made_alone(self):
        return self._within("made_alone")
