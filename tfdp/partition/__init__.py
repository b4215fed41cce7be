"""From the program of one device to the program of each of N replicas.

A function is traced once, as on one device. Each of its tensors gets a *layout*: what a replica
holds of it. A rule for each type of operation says which layouts it can take and gives, and where a
layout must change there is a collective. What has no rule is computed on the gathered batch by
every replica, which is always right. The design is that of GSPMD (Xu et al. 2021, "GSPMD: General
and Scalable Parallelization for ML Computation Graphs", arXiv:2105.04663) with sizes that are known
only when the step runs.

    graph of one device                      source, flattening
    layouts, sizes, values                   layouts, sizes, tensors, shape_inference/
    one operation after the other            propagation, rules/
    what a replica computes and sends        redistribute, replica_program, emit/
    the replica's functions                  partitioning, finish/
    whether ranks have the same program      program_text
    what is exchanged, and why               program_record, explain/
    what is recorded while it runs           explain/
"""

from tfdp.partition.communicator import Collective
from tfdp.partition.explain.collective_order import purposes
from tfdp.partition.explain.explanation import Explanation, explain
from tfdp.partition.explain.instrumentation import Instrumentation
from tfdp.partition.finish.jit_compilation import compiled
from tfdp.partition.finish.registration import (
    Registered,
    add_function,
    host_of,
    on_device,
    remove_functions,
)
from tfdp.partition.layouts import (
    LOCAL,
    PARTIAL,
    REPLICATED,
    Layout,
    Sharded,
    layout_of_parts,
)
from tfdp.partition.marks import PerReplicaRegion, normalization, part_of_sum
from tfdp.partition.partitioning import ReplicaProgram, partition
from tfdp.partition.program_record import Exchanged, ProgramRecord
from tfdp.partition.program_text import operations_of, text_of
from tfdp.partition.sizes import Batch
from tfdp.partition.source import lines_named
