"""The facts that a rank knows of itself and its measurements, which it sends as JSON."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp.base import machine

# The variables that the hints are about.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "KERAS_BACKEND",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_THREAD_MODE",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@dataclasses.dataclass(frozen=True)
class RankFacts:
    """The facts that one rank knows of itself.

    Args:
      rank: The rank.
      host: The name of its host.
      pid: The id of its process.
      versions: The versions of Python and the packages, None for one that is not installed.
      cores: The numbers of the cores that it may use.
      devices: The devices of its replicas, such as `CPU:0`.
      gpus: The number of the host's GPUs that NVIDIA's driver shows to it.
      own_gpus: The GPUs that it may use, as `CUDA_VISIBLE_DEVICES` names them.
      gpu_kinds: The names of their kinds, each once.
      nccl: The version of NCCL, None if it is not known.
      built_with_cuda: Whether its TensorFlow can use GPUs.
      environment: The variables of :data:`VARIABLES` that are set.
    """

    rank: int = 0
    host: str = "localhost"
    pid: int = 0
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    cores: Sequence[int] = (0,)
    devices: Sequence[str] = ("CPU:0",)
    gpus: int = 0
    own_gpus: Sequence[str] = ()
    gpu_kinds: Sequence[str] = ()
    nccl: str | None = None
    built_with_cuda: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def uses_gpu(self) -> bool:
        """Whether the rank's replicas are on GPUs."""
        return any(device.startswith("GPU") for device in self.devices)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankFacts:
        return cls(**value)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The medians of the times that one rank measured.

    Args:
      round_trip_seconds: The time from a message of this rank to the arrival of all others'
        messages, by way of rank 0; None in one process.
      small_seconds: The time of an all-reduce of 4 bytes; None for one replica.
      large_seconds: The time of the large all-reduce; None for one replica.
      right: Whether both results were the sums; None for one replica.
    """

    round_trip_seconds: float | None = None
    small_seconds: float | None = None
    large_seconds: float | None = None
    right: bool | None = None


def own_facts(rank: int, strategy: Any, environment: Mapping[str, str]) -> RankFacts:
    """Returns the facts of this process, which has a strategy.

    Args:
      rank: Its rank.
      strategy: A `tfdp.DataParallelStrategy`.
      environment: The variables of :data:`VARIABLES` that the user has set.
    """
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    details = map(tf.config.experimental.get_device_details, gpus)
    return RankFacts(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=machine.versions(),
        cores=machine.cores(),
        devices=[machine.short_device_name(name) for name in strategy.extended.worker_devices],
        gpus=len(machine.gpus()),
        own_gpus=gpu_names([int(gpu.name.split(":")[-1]) for gpu in gpus], environment),
        gpu_kinds=sorted({each.get("device_name", "unknown") for each in details}),
        nccl=machine.nccl_version(),
        built_with_cuda=tf.test.is_built_with_cuda(),
        environment=environment,
    )


def gpu_names(numbers: Sequence[int], environ: Mapping[str, str]) -> list[str]:
    """Returns the names by which `CUDA_VISIBLE_DEVICES` has the GPUs that CUDA shows.

    >>> gpu_names([1], {"CUDA_VISIBLE_DEVICES": "4,6"}), gpu_names([1], {})
    (['6'], ['1'])
    """
    given = environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) if given is None else given.split(",")[number] for number in numbers]


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of :data:`VARIABLES` that are set.

    >>> chosen({"TF_NUM_INTEROP_THREADS": "8", "HOME": "/root"})
    {'TF_NUM_INTEROP_THREADS': '8'}
    """
    return {name: environ[name] for name in VARIABLES if name in environ}
