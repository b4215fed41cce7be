"""`tfdp doctor`: what this installation and this cluster are, whether they work, what to change.

Importing this package or its :mod:`tfdp.doctor.doctor_command` loads neither TensorFlow nor NumPy.
"""
