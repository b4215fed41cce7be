"""The benchmark of convergence: how the accuracy changes as the batch grows, by optimizer.

It runs resumable sweeps of learning rates, each training in a process of its own, kept in one file.
"""
