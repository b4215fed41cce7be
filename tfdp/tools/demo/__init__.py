"""The command `tfdp demo`: one network on one device and on N replicas, and how far they differ.

Importing this package or its :mod:`tfdp.tools.demo.demo_options` loads neither TensorFlow nor
NumPy.
"""
