"""Logical CPU devices for the measured replicas."""

from __future__ import annotations


def split_cpu(replicas: int) -> None:
    """Makes the CPU as many logical devices; before TensorFlow uses it."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
