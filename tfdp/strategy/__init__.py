"""The strategies, which compose devices, collectives and the hooks of Keras."""
