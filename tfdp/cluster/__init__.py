"""The cluster: which of how many processes this is, and where rank 0 listens.

Found in what launchers leave in the environment. Nothing here imports TensorFlow or opens a
connection (but MPI's, through mpi4py); the launcher uses it too.
"""

from tfdp.cluster.environment import detect, rank_in_environment
from tfdp.cluster.nodelist import expand_nodelist
from tfdp.cluster.spec import Cluster, host_of, join_address, port_of, split_address

__all__ = [
    "Cluster",
    "detect",
    "expand_nodelist",
    "host_of",
    "join_address",
    "port_of",
    "rank_in_environment",
    "split_address",
]
