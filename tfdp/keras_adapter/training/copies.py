"""The comparison of the replicas' copies of a model's variables, at the end of each epoch."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.checkpoint.variables import mirrored
from tfdp.replicas import ProcessGroup, replicas_of

_SUBJECT = "the comparison of the replicas' weights"


class CopiesCompared(keras.callbacks.Callback):
    """A callback that warns once of variables whose copies are not equal on all replicas.

    It reads each copy once an epoch. Processes tell each other checksums of what they hold, and
    all values of a variable only where its copies differ.
    """

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._warned = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares all copies with replica 0's; all processes must call it."""
        replicas = replicas_of(self.model.distribute_strategy)
        if self._warned or replicas is None or replicas.num_replicas == 1:
            return
        variables = [v for v in mirrored(self.model).values() if v.dtype != tf.string]
        parted = _parted(variables, replicas.processes)
        if not parted:
            return
        self._warned = True
        # All of its values are sent.
        smallest = min(parted, key=lambda number: variables[number].shape.num_elements())
        variable, replica = variables[smallest], parted[smallest]
        largest = _largest_difference(variable, replica, replicas.processes)
        if replicas.processes.rank == 0:
            others = f", and of {len(parted) - 1} more variables," if len(parted) > 1 else ""
            logging.getLogger("tfdp").warning(
                "All replicas must have the same weights, but after epoch %d the value of %r%s is "
                "another one on replica %d than on replica 0, by up to %.1g where the largest "
                "number is %.1g. Replica 0's values are shown and saved. Replicas part where each "
                "writes what it has drawn by itself, by `tf.random`, or eagerly by `random` or "
                "`numpy.random`, or writes what depends on its own examples by an operation of "
                "TensorFlow's: draw with `keras.random` and a SeedGenerator, and write with "
                "`assign`. `tfdp.verify` names the layer or the line. Where it is rounding, on "
                "processors of several kinds or by sums in any order on a GPU, see "
                "`tfdp.enable_determinism`.",
                epoch + 1, variable.name.partition(":")[0], others, replica, *largest,
            )  # fmt: skip


def _parted(variables: list[Any], processes: ProcessGroup) -> dict[int, int]:
    """Returns the first replica whose copy is not replica 0's, by the variable's number."""
    checksums = [[zlib.crc32(_bits(copy)) for copy in v.values] for v in variables]
    told = [post.value for post in processes.all_gather(_SUBJECT, checksums)]
    parted = {}
    for number, of_ranks in enumerate(zip(*told, strict=True)):
        copies = [checksum for of_rank in of_ranks for checksum in of_rank]
        other = next((at for at, checksum in enumerate(copies) if checksum != copies[0]), None)
        if other is not None:
            parted[number] = other
    return parted


def _largest_difference(
    variable: Any, replica: int, processes: ProcessGroup
) -> tuple[float, float]:
    """Returns by how much a replica's copy differs from replica 0's, and replica 0's largest."""
    copies = [copy.numpy() for copy in variable.values]
    posts = processes.all_gather(f"{_SUBJECT}: values", payload=np.stack(copies).tobytes())
    whole = [np.frombuffer(post.payload, copies[0].dtype) for post in posts]
    rows = np.concatenate(whole).astype("float64").reshape(-1, copies[0].size)
    return np.abs(rows[replica] - rows[0]).max(), np.abs(rows[0]).max()


def _bits(copy: tf.Variable) -> memoryview:
    return np.ascontiguousarray(copy.numpy()).reshape(-1).view(np.uint8).data
