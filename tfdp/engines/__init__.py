"""Engines: the primitives that move tensors between ranks, in a graph.

`Engine` says what an engine does. What is made of the primitives is in `tfdp.collectives`.
"""

from tfdp.engines.base import Engine
from tfdp.engines.communication_hint import (
    are_gpus,
    communication_hint,
    gpus_of_logical_devices,
)
from tfdp.engines.graph_counters import ProgressCounters
from tfdp.engines.launching import KeyOfGroup
from tfdp.engines.sequence import Call, Sequences, next_key, next_site
from tfdp.engines.tensorflow import TensorFlowEngine

__all__ = [
    "Call",
    "Engine",
    "KeyOfGroup",
    "ProgressCounters",
    "Sequences",
    "TensorFlowEngine",
    "are_gpus",
    "communication_hint",
    "gpus_of_logical_devices",
    "next_key",
    "next_site",
]
