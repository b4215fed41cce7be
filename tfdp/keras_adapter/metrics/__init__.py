"""Metrics and logs of the global batch."""
