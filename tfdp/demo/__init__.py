"""`tfdp demo`: the same network on one device and on N replicas, and how far the weights differ.

Importing this package or its :mod:`tfdp.demo.demo_command` loads neither TensorFlow nor NumPy.
"""
