"""Sums and gathers between replicas, made of an engine's primitives, and the processes' board."""

from tfdp.communication.collectives import payloads, text_rows
from tfdp.communication.collectives.agreement import CollectiveAgreement
from tfdp.communication.collectives.cluster_processes import STOP_TRAINING, ClusterProcesses
from tfdp.communication.collectives.engine_choice import EngineChoice, check_name, choose
from tfdp.communication.collectives.payloads import (
    Compress,
    CompressBucket,
    Transport,
    Value,
    map_values,
)
from tfdp.communication.collectives.probing import Probe
from tfdp.communication.collectives.reducer import Reducer
from tfdp.communication.collectives.runtime import global_seed

__all__ = [
    "STOP_TRAINING",
    "ClusterProcesses",
    "CollectiveAgreement",
    "Compress",
    "CompressBucket",
    "EngineChoice",
    "Probe",
    "Reducer",
    "Transport",
    "Value",
    "check_name",
    "choose",
    "global_seed",
    "map_values",
    "payloads",
    "text_rows",
]
