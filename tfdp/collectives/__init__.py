"""Sums and gathers between replicas, made of an engine's primitives, and the processes' board."""

from tfdp.collectives import summands, text_rows
from tfdp.collectives.agreement import Agreement
from tfdp.collectives.engine_choice import Choice, check_name, choose
from tfdp.collectives.probing import Probe
from tfdp.collectives.processes import STOP_TRAINING, Processes, join, joined
from tfdp.collectives.reducer import Reducer
from tfdp.collectives.runtime import global_seed
from tfdp.collectives.slices import Value, map_values
from tfdp.collectives.transport import Compress, CompressBucket, Transport

__all__ = [
    "STOP_TRAINING",
    "Agreement",
    "Choice",
    "Compress",
    "CompressBucket",
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
    "summands",
    "text_rows",
]
