"""The hooks that make metrics and logs those of the global batch."""
