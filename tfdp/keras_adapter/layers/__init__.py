"""Layers whose result depends on the other examples of the batch, or on the replica."""
