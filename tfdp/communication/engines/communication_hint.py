"""The choice of TensorFlow's implementation (NCCL or its rings) for tensors of replicas."""

import itertools
from collections.abc import Sequence

import tensorflow as tf


def communication_hint(devices: Sequence[str]) -> str:
    """Returns "nccl" where each device is a GPU of its own, else "auto": the runtime's own rings.

    NCCL refuses two ranks on one GPU. Logical devices, into which
    `tf.config.set_logical_device_configuration` splits a GPU, share it; so TensorFlow's own
    `MirroredStrategy` uses rings there, too.

    Args:
      devices: The names of the replicas' devices in this process.

    >>> communication_hint(["/device:CPU:0", "/device:CPU:1"])
    'auto'
    """
    if not are_gpus(devices):
        return "auto"
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    gpus = gpus_of_logical_devices()
    used = [gpus[spec.device_index] for spec in specs]
    return "nccl" if len(set(used)) == len(used) else "auto"


def are_gpus(devices: Sequence[str]) -> bool:
    """Returns whether the replicas' devices are GPUs, or parts of such.

    >>> are_gpus(["/device:GPU:0", "/device:GPU:1"]), are_gpus(["/device:CPU:0"])
    (True, False)
    """
    return all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in devices)


def gpus_of_logical_devices() -> list[str]:
    """Returns for each logical GPU of this process the name of the GPU that it is, or a part of."""
    return list(
        itertools.chain.from_iterable(
            [gpu.name] * len(tf.config.get_logical_device_configuration(gpu) or [None])
            for gpu in tf.config.get_visible_devices("GPU")
        )
    )
