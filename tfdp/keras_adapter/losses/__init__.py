"""Losses, with the numerators and denominators of the global batch."""
