"""From the program of one device to the program of each of N replicas.

A function is traced once, as on one device. Each of its tensors gets a *layout*: what a replica
holds of it. A rule for each type of operation says which layouts it can take and gives, and where a
layout must change there is a collective. What has no rule is computed whole by every replica, which
is always right. The design is that of GSPMD (Xu et al. 2021, "GSPMD: General and Scalable
Parallelization for ML Computation Graphs", arXiv:2105.04663) with sizes that are known only when
the step runs.

    graph of one device                      source, flattening
    layouts, sizes, values                   layouts, sizes, tensors, known_values
    the walk: one operation after the other  walk, rules/
    what a replica computes and sends        conversions, program, writing, arithmetic
    the replica's functions                  partitioning, compiling, registering
    whether ranks have the same program      likeness
    what is exchanged, and why               report, ordering, dependencies, explanation
    what is recorded while it runs           purposes, watching
"""

from tfdp.partition.communication import Collective, Communicator
from tfdp.partition.compiling import compiled
from tfdp.partition.explanation import Explanation, explain
from tfdp.partition.layouts import (
    LOCAL,
    PARTIAL,
    REPLICATED,
    Layout,
    Listed,
    Local,
    Partial,
    Replicated,
    Sharded,
    layout_of_parts,
)
from tfdp.partition.likeness import operations_of, text_of
from tfdp.partition.local_regions import LocalRegion
from tfdp.partition.marks import normalization, part_of_sum
from tfdp.partition.partitioning import ReplicaProgram, partition
from tfdp.partition.purposes import Purposes, purposes
from tfdp.partition.registering import Registered, host_of, on_device
from tfdp.partition.report import Exchanged, Report
from tfdp.partition.sizes import Batch
from tfdp.partition.source import lines_named
from tfdp.partition.watching import Watching

__all__ = [
    "LOCAL",
    "PARTIAL",
    "REPLICATED",
    "Batch",
    "Collective",
    "Communicator",
    "Exchanged",
    "Explanation",
    "Layout",
    "Listed",
    "Local",
    "LocalRegion",
    "Partial",
    "Purposes",
    "Registered",
    "ReplicaProgram",
    "Replicated",
    "Report",
    "Sharded",
    "Watching",
    "compiled",
    "explain",
    "host_of",
    "layout_of_parts",
    "lines_named",
    "normalization",
    "on_device",
    "operations_of",
    "part_of_sum",
    "partition",
    "purposes",
    "text_of",
]
