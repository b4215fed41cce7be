"""Sums and gathers between replicas, made of an engine's primitives, and the processes' board."""

from tfdp.collectives.agreement import Agreement
from tfdp.collectives.engine_choice import Choice, check_name, choose
from tfdp.collectives.probing import Probe
from tfdp.collectives.processes import STOP_TRAINING, Processes, join, joined
from tfdp.collectives.reducer import Compress, Reducer, Transport
from tfdp.collectives.runtime import global_seed
from tfdp.collectives.slices import Value, map_values

__all__ = [
    "STOP_TRAINING",
    "Agreement",
    "Choice",
    "Compress",
    "Probe",
    "Processes",
    "Reducer",
    "Transport",
    "Value",
    "check_name",
    "choose",
    "global_seed",
    "join",
    "joined",
    "map_values",
]
