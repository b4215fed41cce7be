"""How many replicas the promise's tests train on, on what, and in which cases."""

import os

# Set by `tests/clusters.py`: the tests run in every process of a cluster, all with the same
# strategy. Those of `keras` run there in their first case alone: cases differ in what a process
# does by itself.
CLUSTER_REPLICAS = int(os.environ.get("TFDP_TESTS_CLUSTER_REPLICAS", "0"))

# `make test` and `make check`: two replicas, which cost least, and graphs as they were traced, for
# TensorFlow's way of rewriting them takes a sixth of a test's time; their clusters and scripts run
# as users' programs do. `make test-all` shows each mechanism on an odd number, which shares nearly
# every batch unevenly, and in rewritten graphs; its exhaustive variants run as `make test` does,
# and its clusters in graphs as they were traced. Tests that need a number of their own say so.
FAST = os.environ.get("TFDP_TESTS_FAST") == "1"
REPLICAS = CLUSTER_REPLICAS or (2 if FAST else 3)
REPLICAS_OF_VARIANTS = CLUSTER_REPLICAS or 2

# "GPU": replicas are parts of the first GPU, in tests that ask the harness for them and in one
# process. TensorFlow must be the build for GPUs.
DEVICE = os.environ.get("TFDP_TESTS_DEVICE", "CPU")

AS_TRACED = bool(CLUSTER_REPLICAS) != FAST


def count_id(replicas):
    """Names a number of replicas in a test's id."""
    return f"{replicas}-replicas"
