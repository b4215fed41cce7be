"""The command `tfdp bench`: how long each topology takes for each size, beside other engines.

Importing this package or its :mod:`tfdp.tools.bench.bench_options` loads neither TensorFlow nor
NumPy.
"""
