"""The cluster: which of how many processes this is, and where rank 0 listens.

The cluster is found in what launchers leave in the environment. Nothing here imports TensorFlow,
and no connection is opened but MPI's, through mpi4py. The launcher uses this package, too.
"""

from tfdp.cluster.environment import detect, rank_in_environment
from tfdp.cluster.slurm import expand_nodelist
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
