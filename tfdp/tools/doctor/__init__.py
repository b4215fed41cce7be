"""The command `tfdp doctor`: it checks this installation and this cluster, and says what to change.

Importing this package or its :mod:`tfdp.tools.doctor.doctor_options` loads neither TensorFlow nor
NumPy.
"""
