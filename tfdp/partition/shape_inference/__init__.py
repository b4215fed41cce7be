"""Shapes and small values of the one-device program, in terms of the lengths of batches."""
