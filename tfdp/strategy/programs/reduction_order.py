"""The order of a strategy's sums, which decides their last bits: saved, and used again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdp.base import machine
from tfdp.topology import Auto, serialization

if TYPE_CHECKING:
    from tfdp.strategy.extended import DataParallelExtended

_FIXED = {
    "engine": "engine",
    "topology": "topology",
    "bucket_bytes": "bucket_bytes",
    "threads": "number of threads of an operation",
}


def described(extended: DataParallelExtended) -> dict[str, Any]:
    """Returns what decides the order of sums, as JSON."""
    decided = _decision(extended)
    return {
        "hosts": extended.hosts(),
        "engine": extended.engine,
        "topology": "auto" if decided else repr(extended.topology),
        "decided": decided,
        "bucket_bytes": extended.bucket_bytes,
        "threads": threads(),
    }


def take(extended: DataParallelExtended, kept: Mapping[str, Any]) -> list[str]:
    """Sums as it was kept, where as many replicas on as many hosts do, and it can be chosen.

    Args:
      extended: The strategy's part that sums.
      kept: What `described` returned.

    Returns:
      In words what cannot be taken, and so gives other bits.
    """
    own = described(extended)
    if kept.get("hosts") != own["hosts"]:
        return []  # another number of replicas sums in another order in any case
    if kept["decided"] is not None and own["decided"] is not None:
        decided = serialization.loads(kept["decided"], own["hosts"], "the checkpoint")
        extended.use_topology(decided, kept["bucket_bytes"])
        own = described(extended)
    return [
        f"the {name} was {kept[key]} and is {own[key]}"
        for key, name in _FIXED.items()
        if kept[key] != own[key]
    ]


def _decision(extended: DataParallelExtended) -> str | None:
    """Returns what was decided by measurements, which may come out otherwise the next time."""
    topology = extended.topology
    if isinstance(topology, Auto) and topology.links is not None:
        return serialization.dumps(topology, extended.hosts())
    return None


def threads() -> int:
    """Returns how many threads an operation of TensorFlow may use."""
    chosen = tf.config.threading.get_intra_op_parallelism_threads()
    named = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return chosen or (int(named) if named.isdigit() else 0) or len(machine.cores())


def is_any(devices: Sequence[str]) -> bool:
    """Returns whether kernels of some devices add what goes to one place as it comes: a GPU's."""
    return {tf.DeviceSpec.from_string(device).device_type for device in devices} != {"CPU"}
