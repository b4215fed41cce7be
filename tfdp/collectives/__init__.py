"""Collective operations between replicas, on TensorFlow's collective runtime."""

from tfdp.collectives.agreement import Agreement
from tfdp.collectives.communicator import Communicator
from tfdp.collectives.probing import Probe
from tfdp.collectives.processes import STOP_TRAINING, Processes, join, joined
from tfdp.collectives.progress import ProgressCounters
from tfdp.collectives.reducer import Compress, Reducer, Transport
from tfdp.collectives.runtime import global_seed
from tfdp.collectives.sequence import Sequences, next_key
from tfdp.collectives.slices import Value, map_values

__all__ = [
    "STOP_TRAINING",
    "Agreement",
    "Communicator",
    "Compress",
    "Probe",
    "Processes",
    "ProgressCounters",
    "Reducer",
    "Sequences",
    "Transport",
    "Value",
    "global_seed",
    "join",
    "joined",
    "map_values",
    "next_key",
]
