"""Synchronizations: replicas that do not wait in each step for the sum of its gradients.

They train by themselves, and exchange weights every so many updates; or the sum is applied later.
`DataParallelStrategy(synchronization=...)` takes one.
"""

from tfdp.synchronization.asynchronous import Asynchronous
from tfdp.synchronization.delayed import Delayed
from tfdp.synchronization.diloco import DiLoCo
from tfdp.synchronization.gossip import Gossip
from tfdp.synchronization.local_sgd import LocalSGD
from tfdp.synchronization.weight_averaging import Synchronization

__all__ = ["Asynchronous", "Delayed", "DiLoCo", "Gossip", "LocalSGD", "Synchronization"]
