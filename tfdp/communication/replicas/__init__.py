"""The protocols by which hooks of Keras, commands and callbacks use replicas.

`Replicas` is what the replicas of a strategy do together; `ProcessGroup` is what their processes
tell each other outside of graphs:

    Keras adapter, commands, callbacks                     ask
    ----------------------------------------------------------------------------------------
    Replicas        how many, and which one calls          num_replicas, rank
                    sum, send from the first, gather       sum, sum_without_gradient,
                                                           broadcast_from_first, gather_rows
                    write the same, hold shares            identical_writes, summed_on_read, parted,
                                                           sums_read_once, made_alone
                    their processes, what they exchange    processes, exchange
    ProcessGroup    who and where                          rank, world_size, local_size, hosts
                    meet outside of graphs                 barrier, from_first, all_gather,
                                                           bring_to_first, compare,
                                                           sum_eagerly, gather_eagerly
                    fail together                          explained, failure, fail, error
                    start alike                            adopt_random_states, settings
                    trace alike                            agreement, counters, count_step
    ----------------------------------------------------------------------------------------
    tfdp.strategy   implements Replicas; OneProcess, here, and the cluster's
                    collectives.ClusterProcesses implement ProcessGroup                  answer

One process is the simple case of a group: `OneProcess` answers each call by itself, at once. So no
caller asks whether there is a cluster; where one must act otherwise, it asks `world_size > 1`.

`replicas_of` returns the replicas of a strategy, and `sharder_of` what shards batches for Keras'
steps into a `BatchShard` for each replica. `compiler_of` returns what compiles whole programs,
where a compiler makes the replicas' own. A strategy of another kind, an engine or a sharded
optimizer implements or wraps the same protocol.
"""

from tfdp.communication.collectives import Value, data_mismatch
from tfdp.communication.replicas import batch_fingerprints, checksums, one_device
from tfdp.communication.replicas.batch_shard import (
    BatchShard,
    FullBatchShard,
    KnownLengths,
    TurnBatchShard,
    has_rows,
    num_lengths,
    of_replica,
    place_and_rows,
    rows_of,
)
from tfdp.communication.replicas.one_process import OneProcess
from tfdp.communication.replicas.process_group import Agreement, ProcessGroup, Turns
from tfdp.communication.replicas.replicas_protocol import Replicas, Rows
from tfdp.communication.replicas.strategy_access import (
    CompilesPrograms,
    HasLayout,
    HasReplicas,
    OfPartials,
    can_be_sharded,
    compiler_of,
    is_of_tfdp,
    processes_of,
    replicas_of,
    sharder_of,
    sharding_of,
    sums_of,
)

__all__ = [
    "Agreement",
    "BatchShard",
    "CompilesPrograms",
    "FullBatchShard",
    "HasLayout",
    "HasReplicas",
    "KnownLengths",
    "OfPartials",
    "OneProcess",
    "ProcessGroup",
    "Replicas",
    "Rows",
    "TurnBatchShard",
    "Turns",
    "Value",
    "batch_fingerprints",
    "can_be_sharded",
    "checksums",
    "compiler_of",
    "data_mismatch",
    "is_of_tfdp",
    "num_lengths",
    "of_replica",
    "one_device",
    "place_and_rows",
    "processes_of",
    "replicas_of",
    "rows_of",
    "sharder_of",
    "sharding_of",
    "sums_of",
]
