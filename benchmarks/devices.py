"""The logical CPU devices of the measured replicas."""

from __future__ import annotations


def split_cpu(replicas: int) -> None:
    """Splits the CPU into logical devices; call it before TensorFlow uses the CPU."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
