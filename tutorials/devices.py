"""The devices of the replicas: GPUs if there are enough, else logical CPU devices."""

import tensorflow as tf


def prepare_devices(replicas: int) -> list[str]:
    """Ensures `replicas` devices of one kind, and hides the GPUs if there are too few.

    Call this function before TensorFlow touches a device.

    Returns:
      The names of `replicas` devices, such as `["CPU:0", "CPU:1"]`. An unplaced model runs on the
      first one, too.

    Raises:
      RuntimeError: TensorFlow has already fixed its devices, and there are too few.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= replicas:
        # TensorFloat-32 rounds products to 10 bits; the comparison is about float32.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        return [f"GPU:{index}" for index in range(replicas)]
    if gpus:
        tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or [None]
    if len(configured) < replicas:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
        )
    return [f"CPU:{index}" for index in range(replicas)]
