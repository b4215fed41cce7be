"""The strategy, which composes the devices, the collectives and the Keras adapter."""
