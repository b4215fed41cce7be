"""How many replicas the promise's tests train on, and in which cases."""

import os

# Set by `tests/keras_adapter/test_across_processes.py`: the promise's tests run in every process of
# a cluster, all with the same strategy.
CLUSTER_REPLICAS = int(os.environ.get("TFDP_TESTS_CLUSTER_REPLICAS", "0"))

# Each test may run there in its first case alone: cases differ in what a process does by itself.
ONLY_FIRST_CASES = os.environ.get("TFDP_TESTS_ONLY_FIRST_CASES") == "1"

# `make test` takes two, which cost least, and `make test-all` an odd number, which shares nearly
# every batch unevenly. Tests that need a number of their own say so.
REPLICAS = CLUSTER_REPLICAS or int(os.environ.get("TFDP_TESTS_REPLICAS", "3"))


def count_id(replicas):
    """Names a number of replicas in a test's id."""
    return f"{replicas}-replicas"
