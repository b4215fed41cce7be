"""Synchronizations: replicas that do not wait in each step for the sum of its gradients.

They train by themselves, and exchange weights every so many updates; or the sum is applied later,
or without the ranks that come late.
`DataParallelStrategy(synchronization=...)` takes one.
"""

from tfdp.synchronization.asynchronous import Asynchronous
from tfdp.synchronization.backup_workers import BackupWorkers
from tfdp.synchronization.delayed import Delayed
from tfdp.synchronization.diloco import DiLoCo
from tfdp.synchronization.gossip import Gossip
from tfdp.synchronization.local_sgd import LocalSGD
from tfdp.synchronization.weight_averaging import Synchronization

__all__ = [
    "Asynchronous",
    "BackupWorkers",
    "Delayed",
    "DiLoCo",
    "Gossip",
    "LocalSGD",
    "Synchronization",
]
