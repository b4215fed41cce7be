"""Training on GPUs and TPUs: the program of one device, partitioned by XLA and run by PJRT.

A step is traced as on one device and lowered to StableHLO, with the batch sharded along its rows.
XLA's own partitioner makes of it what each device runs, and JAX's runtime runs that. Everything
outside of such programs is one device's, on the host.
"""
