"""Collective operations between replicas, on TensorFlow's collective runtime."""

from tfdp.collectives.communicator import Communicator
from tfdp.collectives.reducer import Reducer
from tfdp.collectives.sequence import Sequences

__all__ = ["Communicator", "Reducer", "Sequences"]
