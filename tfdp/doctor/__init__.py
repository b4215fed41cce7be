"""The command `tfdp doctor`: it checks this installation and this cluster, and says what to change.

Importing this package or its :mod:`tfdp.doctor.doctor_options` loads neither TensorFlow nor NumPy.
"""
