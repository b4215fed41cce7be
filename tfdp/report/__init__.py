"""`tfdp report`: one HTML page of what `tfdp.callbacks.Telemetry` wrote into a log directory.

No module of it loads TensorFlow; those that read logs load neither NumPy nor matplotlib.
"""
