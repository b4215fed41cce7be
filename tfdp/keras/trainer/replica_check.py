"""The comparison of the replicas' copies of a model's variables, at the end of each epoch."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import mirrored
from tfdp.communication.replicas import ProcessGroup, checksums, replicas_of

_SUBJECT = "the comparison of the replicas' weights"
_LARGEST_SENT = 2**26  # bytes


class CopiesCompared(keras.callbacks.Callback):
    """A callback that warns of weights whose copies are not equal on all replicas.

    After each epoch each device computes checksums of its copies, some 0.4 s for 100 MB on a CPU,
    and sends these to the host. What an optimizer keeps is not compared: it parts the
    weights with the next update. A strategy warns once.
    """

    async_safe = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares all copies with replica 0's; all processes must call it."""
        strategy = self.model.distribute_strategy
        replicas = replicas_of(strategy)
        if replicas is None or replicas.num_replicas == 1:
            return
        warned = strategy.adapter_state.warned_about
        if _SUBJECT in warned:
            return
        variables = {
            name: variable
            for name, variable in mirrored(self.model).items()
            if not name.startswith("optimizer") and _is_number(variable)
        }
        parted = _parted(variables, replicas.processes)
        if parted:
            warned.add(_SUBJECT)
            smallest = min(parted, key=lambda name: variables[name].shape.num_elements())
            _warn(variables[smallest], parted[smallest], len(parted), epoch, replicas.processes)


def _is_number(variable: Any) -> bool:
    return variable.dtype != tf.string and variable.shape.is_fully_defined()


def _parted(variables: Mapping[str, Any], processes: ProcessGroup) -> dict[str, int]:
    """Returns the first replica whose copy is not replica 0's, by the variable's name."""
    own = {}
    for name, of_copies in _checksums(variables).items():
        first, *others = of_copies
        numbers = (number for number, other in enumerate(others, 1) if other != first)
        own[name] = [first, next(numbers, None)]
    told = [post.value for post in processes.all_gather(_SUBJECT, own)]
    parted: dict[str, int] = {}
    for name in _common(told):
        for rank, (checksum, other) in enumerate(of_rank[name] for of_rank in told):
            place = other if checksum == told[0][name][0] else 0
            if place is not None:
                parted.setdefault(name, rank * processes.local_size + place)
    return parted


def _checksums(variables: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the checksums of each variable's copies in this process, in their order."""
    of_replicas = []
    for copies in zip(*(variable.values for variable in variables.values()), strict=True):
        with tf.device(copies[0].device):  # which sends its numbers in one tensor
            found = [checksums.of_tensor(tf.convert_to_tensor(copy)) for copy in copies]
            of_replicas.append(tf.stack(found))
    of_copies = zip(*(found.numpy().tolist() for found in of_replicas), strict=True)
    return dict(zip(variables, map(list, of_copies), strict=True))


def _common(told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names that mean the same variable on all ranks."""
    names = [name for name in told[0] if all(name in of_rank for of_rank in told)]
    if all(len(of_rank) == len(names) for of_rank in told):
        return names
    # A rank has a variable of its own among those that Keras does not list, which are counted.
    return [name for name in names if not name.startswith("other")]


def _warn(variable: Any, replica: int, number: int, epoch: int, processes: ProcessGroup) -> None:
    copies = _copies_of(variable, replica, processes)
    if processes.rank != 0:
        return
    size = ""
    if copies is not None:
        first, other = (copy.astype("complex128") for copy in copies)
        size = (
            f", by up to {abs(other - first).max():.1g} where the largest is {abs(first).max():.1g}"
        )
    logging.getLogger("tfdp").warning(
        "All replicas must have the same weights, but after epoch %d the value of %r%s is another "
        "one on replica %d than on replica 0%s. Replica 0's values are shown and saved. Replicas "
        "part where each writes what it has drawn by itself, by `tf.random`, or eagerly by "
        "`random` or `numpy.random`, or writes what depends on its own examples by an operation "
        "of TensorFlow's: draw with `keras.random` and a SeedGenerator, and write with `assign`. "
        "`tfdp.verify` names the layer or the line. Where it is rounding, on processors of several "
        "kinds or by sums in any order on a GPU, see `tfdp.enable_determinism`.",
        epoch + 1,
        variable.name.partition(":")[0],
        f", and of {number - 1} more variables," if number > 1 else "",
        replica,
        size,
    )


def _copies_of(
    variable: Any, replica: int, processes: ProcessGroup
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns replica 0's copy and another one on rank 0; None elsewhere, and of large variables.

    All processes must call it.
    """
    if variable.shape.num_elements() * variable.dtype.size > _LARGEST_SENT:
        return None
    rank, place = divmod(replica, processes.local_size)
    own = variable.values[place if processes.rank == rank else 0].numpy()
    if rank == 0:
        return (variable.values[0].numpy(), own) if processes.rank == 0 else None
    payload = own.tobytes() if processes.rank == rank else b""
    sent = processes.all_gather(f"{_SUBJECT}: its value", payload=payload)[rank].payload
    return (own, np.frombuffer(sent, own.dtype).reshape(own.shape)) if processes.rank == 0 else None
