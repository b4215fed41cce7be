"""The traced program, read backwards: what its graph shows of examples, rows and replicas."""
