"""The logical devices of the measured replicas."""

# The memory of one part, in MiB: a dozen processes of four parts fit on a large GPU.
_GPU_PART = 2048


def of_replicas(replicas: int, kind: str) -> list[str]:
    """Returns the names of replicas' devices; call it before TensorFlow uses them.

    Whole GPUs where there are as many, so that NCCL moves tensors between them, without
    TensorFloat-32; else parts of the first device: see :func:`split`.
    """
    import tensorflow as tf

    if kind == "CPU" or len(tf.config.list_physical_devices(kind)) < replicas:
        return split(replicas, kind)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return [f"{kind}:{index}" for index in range(replicas)]


def split_cpu(replicas: int) -> None:
    """Splits the CPU into logical devices; call it before TensorFlow uses the CPU."""
    split(replicas, "CPU")


def split(replicas: int, kind: str) -> list[str]:
    """Splits the first device of a kind into logical ones; call it before TensorFlow uses it.

    On a GPU products are then made without TensorFloat-32, which rounds to 10 bits.

    Args:
      replicas: The number of logical devices.
      kind: "CPU" or "GPU".

    Returns:
      Their names.

    Raises:
      RuntimeError: There is no such device, or TensorFlow has used it.
    """
    import tensorflow as tf

    physical = tf.config.list_physical_devices(kind)
    if not physical:
        raise RuntimeError(
            f"TensorFlow must see a {kind} to split it into {replicas}, but it sees none. Do "
            "`tfdp doctor`, which says why."
        )
    part = tf.config.LogicalDeviceConfiguration(_GPU_PART if kind == "GPU" else None)
    tf.config.set_logical_device_configuration(physical[0], [part] * replicas)
    if kind == "GPU":
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return [f"{kind}:{index}" for index in range(replicas)]
