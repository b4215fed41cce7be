"""Engines: the primitives that move tensors between ranks, in a graph.

`Engine` says what an engine does. What is made of the primitives is in
`tfdp.communication.collectives`.
"""

from tfdp.communication.engines.engine import Engine
from tfdp.communication.engines.graph_counters import ProgressCounters
from tfdp.communication.engines.sequence import (
    CollectiveCall,
    Sequences,
    beside,
    next_key,
    next_site,
)
from tfdp.communication.engines.tensorflow_engine import (
    TensorFlowEngine,
    are_gpus,
    communication_hint,
    gpus_of_logical_devices,
)

__all__ = [
    "CollectiveCall",
    "Engine",
    "ProgressCounters",
    "Sequences",
    "TensorFlowEngine",
    "are_gpus",
    "beside",
    "communication_hint",
    "gpus_of_logical_devices",
    "next_key",
    "next_site",
]
