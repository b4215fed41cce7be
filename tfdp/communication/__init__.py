"""Engines that move tensors between replicas, collectives made of them, protocols to use them."""
