"""Programs of replicas, made of functions."""

from partition.check import strategy


def program(function, *batches, replicas=2):
    """The program that replicas run in the place of a function."""
    partitioned = strategy(replicas).partitioned(function)
    partitioned(*batches)
    return partitioned._latest.program
