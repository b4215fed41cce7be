"""`tfdp bench fit`: step times of tfdp and of TensorFlow's own strategy, side by side.

Importing this package or its :mod:`tfdp.bench.options` loads neither TensorFlow nor NumPy.
"""
