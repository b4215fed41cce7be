"""The protocols by which hooks of Keras, commands and callbacks use replicas.

`Replicas` is what the replicas of a strategy do together; `ProcessGroup` is what their processes
tell each other outside of graphs:

    Keras adapter, commands, callbacks                     ask
    ----------------------------------------------------------------------------------------
    Replicas        how many, and whose trace this is      num_replicas, replica_id, trace
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

A replica's number is a tensor, `replica_id`: arithmetic with it holds for every replica, so that
one trace may serve all of them. `Trace` holds what Python may know while a step is traced.

`replicas_of` returns the replicas of a strategy, and `sharder_of` what cuts batches for Keras'
steps into a `BatchShard` for each replica. `compiler_of` returns what compiles whole programs,
where a compiler makes the replicas' own. A strategy of another kind, an engine or a sharded
optimizer implements or wraps the same protocol.
"""

from tfdp.communication.collectives import Value, unequal_data
from tfdp.communication.replicas import batch_fingerprints, checksums, one_device
from tfdp.communication.replicas.batch_shard import (
    BatchShard,
    FullBatchShard,
    KnownLengths,
    TurnBatchShard,
    num_lengths,
    of_replica,
    place_and_rows,
    rows_of,
)
from tfdp.communication.replicas.one_process import OneProcess
from tfdp.communication.replicas.process_group import Agreement, ProcessGroup, Turns
from tfdp.communication.replicas.replicas_protocol import Replicas, Rows, Trace
from tfdp.communication.replicas.sharded_variables import can_be_sharded, sharding_of
from tfdp.communication.replicas.strategy_access import (
    CompilesPrograms,
    HasReplicas,
    OfPartials,
    compiler_of,
    is_of_tfdp,
    processes_of,
    replicas_of,
    sharder_of,
    sums_of,
)

__all__ = [
    "Agreement",
    "BatchShard",
    "CompilesPrograms",
    "FullBatchShard",
    "HasReplicas",
    "KnownLengths",
    "OfPartials",
    "OneProcess",
    "ProcessGroup",
    "Replicas",
    "Rows",
    "Trace",
    "TurnBatchShard",
    "Turns",
    "Value",
    "batch_fingerprints",
    "can_be_sharded",
    "checksums",
    "compiler_of",
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
    "unequal_data",
]
