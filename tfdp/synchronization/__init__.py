"""Synchronizations: replicas that train by themselves, and agree on weights every so many updates.

`DataParallelStrategy(synchronization=...)` takes one, in place of a sum of gradients in each step.
"""

from tfdp.synchronization.diloco import DiLoCo
from tfdp.synchronization.gossip import Gossip
from tfdp.synchronization.local_sgd import LocalSGD
from tfdp.synchronization.weight_averaging import Synchronization

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "Synchronization"]
