"""The command `tfdp run`: N processes of one command on this host, supervised as one.

This package does not import TensorFlow; the command does so, in each rank.

Each rank runs under a small supervisor of its own (:mod:`tfdp.cluster.launch.rank_supervisor`),
which holds a pipe from the launcher. However the launcher ends, the pipe closes, and the supervisor
ends the rank and all that the rank started.
"""

from tfdp.cluster.launch.launcher import run
from tfdp.cluster.launch.run_options import RunOptions

__all__ = ["RunOptions", "run"]
