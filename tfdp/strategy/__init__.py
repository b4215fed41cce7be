"""The strategy: it composes devices, collectives and the Keras adapter."""
