"""The exchanges of a finished program, and their reasons."""
