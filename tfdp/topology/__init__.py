"""Topologies: pure functions from (world size, hosts, bytes) to a schedule of phases.

Topologies do not depend on TensorFlow. An engine in `tfdp.communication.collectives` runs the
phases.
"""

from tfdp.topology.auto import Auto, Rule, decide
from tfdp.topology.costs import Cost, cost
from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.model import Choice, Links, choose, predict_seconds, seconds_of
from tfdp.topology.native import Native
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import AllReduce, Exchange, Phase, Schedule, Topology, Transfer
from tfdp.topology.serialization import from_name, names
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree

__all__ = [
    "AllReduce",
    "Auto",
    "Choice",
    "Cost",
    "Direct",
    "Exchange",
    "HalvingDoubling",
    "Hierarchical",
    "Links",
    "Native",
    "Phase",
    "Ring",
    "Rule",
    "Schedule",
    "Topology",
    "Torus",
    "Transfer",
    "Tree",
    "choose",
    "cost",
    "decide",
    "from_name",
    "names",
    "predict_seconds",
    "seconds_of",
]
