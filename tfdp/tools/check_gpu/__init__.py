"""The command `tfdp check-gpu`: what works on this machine's GPUs, stage by stage.

Importing this package, its options or its stages loads neither TensorFlow nor NumPy.
"""
