"""How many replicas the promise's tests train on, and in which cases."""

import os

# Set by `tests/keras_adapter/test_across_processes.py`: the promise's tests run in every process of
# a cluster, all with the same strategy.
CLUSTER_REPLICAS = int(os.environ.get("TFDP_TESTS_CLUSTER_REPLICAS", "0"))

# Each test may run there in its first case alone: cases differ in what a process does by itself.
ONLY_FIRST_CASES = os.environ.get("TFDP_TESTS_ONLY_FIRST_CASES") == "1"

# An odd number shares nearly every batch unevenly. Two are what the processes have.
REPLICAS = CLUSTER_REPLICAS or 3


def count_id(replicas):
    """Names a number of replicas in a test's id."""
    return f"{replicas}-replicas"
