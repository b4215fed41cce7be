"""The hooks of layers whose results depend on other examples of the batch, or on the replica."""
