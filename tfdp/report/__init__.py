"""`tfdp report`: one HTML page of what `tfdp.callbacks.Telemetry` wrote into a log directory.

Importing this package or any of its modules loads neither TensorFlow nor NumPy.
"""
