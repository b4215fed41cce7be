"""What mypy must find in a program that uses the seam wrongly; `test_types` checks it."""

import tensorflow as tf

from tfdp.communication.replicas import (
    OneProcess,
    ProcessGroup,
    Replicas,
    processes_of,
    replicas_of,
)
from tfdp.keras.replica_step import ReplicaStep


class Incomplete:
    """Replicas that cannot even sum."""

    num_replicas = 2


def misuse(strategy: tf.distribute.Strategy, step: ReplicaStep) -> None:
    print(replicas_of(strategy).num_replicas)  # error: Item "None"
    incomplete: Replicas = Incomplete()  # error: Incompatible types
    alone: ProcessGroup = OneProcess()
    alone.board.barrier("saving")  # error: "ProcessGroup" has no attribute "board"
    step.replicas.sum_without_gradient([], compress="half")  # error: Argument "compress"
    print(step.replicas.in_cluster)  # error: "Replicas" has no attribute "in_cluster"
    print(step.trace)  # error: "ReplicaStep" has no attribute "trace"
    size: str = processes_of(strategy).local_size  # error: Incompatible types
    print(incomplete, size)
