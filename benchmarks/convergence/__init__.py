"""`benchmarks convergence`: what becomes of the accuracy as the batch grows, by optimizer.

Resumable sweeps of learning rates, each training in a process of its own, kept in one file.
"""
