"""`tfdp bench allreduce`: how long each topology takes for each size, beside other engines.

Importing this package or its :mod:`tfdp.bench.allreduce.options` loads neither TensorFlow nor
NumPy.
"""
