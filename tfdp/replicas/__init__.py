"""The protocols by which the Keras adapter, the commands and the callbacks use replicas.

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
                    tfdp.collectives.Processes implement ProcessGroup       answer

One process is the simple case of a group: `OneProcess` answers each call by itself, at once. So no
caller asks whether there is a cluster; where one must act otherwise, it asks `world_size > 1`.

A replica's number is a tensor, `replica_id`: arithmetic with it holds for every replica, so that
one trace may serve all of them. `Trace` holds what Python may know while a step is traced.

`replicas_of` returns the replicas of a strategy, and `cutter_of` what cuts batches for Keras' steps
into a `Cut` for each replica. `compiler_of` returns what compiles whole programs, where a compiler
makes the replicas' own. A strategy of another kind, an engine or a sharded
optimizer implements or wraps the same protocol.
"""

from tfdp.collectives import Value
from tfdp.replicas import checksums, fingerprints, one_device, unequal_data
from tfdp.replicas.cut import Cut, FullCut, TurnCut, of_replica, rows_of
from tfdp.replicas.exchange import Exchange
from tfdp.replicas.one_process import OneProcess
from tfdp.replicas.parts import can_be_cut, cut_of
from tfdp.replicas.process_group import Agreement, ProcessGroup
from tfdp.replicas.protocol import Replicas, Rows, Trace
from tfdp.replicas.strategies import (
    CompilesPrograms,
    OfSummands,
    Replicated,
    compiler_of,
    cutter_of,
    exchange_of,
    is_of_tfdp,
    processes_of,
    replicas_of,
    sums_of,
)

__all__ = [
    "Agreement",
    "CompilesPrograms",
    "Cut",
    "Exchange",
    "FullCut",
    "OfSummands",
    "OneProcess",
    "ProcessGroup",
    "Replicas",
    "Replicated",
    "Rows",
    "Trace",
    "TurnCut",
    "Value",
    "can_be_cut",
    "checksums",
    "compiler_of",
    "cut_of",
    "cutter_of",
    "exchange_of",
    "fingerprints",
    "is_of_tfdp",
    "of_replica",
    "one_device",
    "processes_of",
    "replicas_of",
    "rows_of",
    "sums_of",
    "unequal_data",
]
