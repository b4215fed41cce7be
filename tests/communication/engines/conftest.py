"""Running replica functions without a strategy."""

from replica_functions import collectives_in, devices, on_replicas

__all__ = ["collectives_in", "devices", "on_replicas"]
