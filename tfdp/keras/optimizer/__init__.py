"""Gradients and updates: what is summed over replicas, with which weights, and when."""
