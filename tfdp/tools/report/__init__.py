"""The command `tfdp report`: one HTML page of what `tfdp.callbacks.Telemetry` logged.

No module of this package loads TensorFlow or NumPy.
"""
