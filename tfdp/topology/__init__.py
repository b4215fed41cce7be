"""Topologies: pure functions from (world size, hosts, bytes) to a schedule of phases.

They know no TensorFlow. An engine in `tfdp.collectives` runs the phases.
"""

from tfdp.topology.base import AllReduce, Schedule, Topology
from tfdp.topology.native import Native
from tfdp.topology.registry import from_name, names

__all__ = ["AllReduce", "Native", "Schedule", "Topology", "from_name", "names"]
