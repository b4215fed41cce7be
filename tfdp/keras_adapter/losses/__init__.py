"""Losses of the global batch: their values, and each replica's term of their gradients."""
