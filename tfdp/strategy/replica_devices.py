"""The choice of the devices that a strategy trains on."""

import os
from collections.abc import Sequence

import tensorflow as tf

from tfdp.base import gpus
from tfdp.cluster.environment import own_gpus
from tfdp.communication.engines import gpus_of_logical_devices
from tfdp.communication.replicas import ProcessGroup
from tfdp.errors import ClusterError

# The number of replicas that share a process' CPU; `tfdp run --devices-per-process` sets it.
DEVICES_PER_PROCESS = "TFDP_DEVICES_PER_PROCESS"


def count(devices: Sequence[str] | None) -> int:
    """Returns how many devices `resolve` will find; does not start TensorFlow's devices."""
    if devices is not None:
        return len(devices)
    _take_own_gpus()
    _split_cpu()
    return len(gpus_of_logical_devices()) or per_process()


def per_process() -> int:
    """Returns how many replicas the environment asks for on the CPU of each process."""
    text = os.environ.get(DEVICES_PER_PROCESS, "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"{DEVICES_PER_PROCESS} must be a number of devices, at least 1, but is {text!r}. "
            "Unset it, or use `tfdp run --devices-per-process 2`."
        )
    return int(text)


def _take_own_gpus() -> None:
    """Leaves to this process its share of the GPUs that all ranks of its host see: see `own_gpus`.

    A program that has chosen by `tf.config.set_visible_devices` is followed.
    """
    present = tf.config.list_physical_devices("GPU")
    own = own_gpus(present, os.environ)
    if own is None or tf.config.get_visible_devices("GPU") != present:
        return
    try:
        tf.config.set_visible_devices(own, "GPU")
    except RuntimeError as error:
        raise ValueError(
            "The GPUs of each rank of a host must be known before TensorFlow is used, but an "
            "operation has run already. Make `tfdp.DataParallelStrategy()` the first thing after "
            f"the imports, or set {gpus.VISIBLE} for each rank."
        ) from error


def _split_cpu() -> None:
    """Splits the CPU into as many logical devices as the environment asks for."""
    wanted = per_process()
    if wanted == 1 or tf.config.get_visible_devices("GPU"):
        return
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    existing = tf.config.get_logical_device_configuration(cpu)
    if existing is not None and len(existing) == wanted:
        return
    try:
        parts = [tf.config.LogicalDeviceConfiguration()] * wanted
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError as error:
        raise ValueError(
            f"{DEVICES_PER_PROCESS}={wanted} must be known before TensorFlow is used, but an "
            "operation has run already. Make `tfdp.DataParallelStrategy()` the first thing after "
            "the imports."
        ) from error


def resolve(devices: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the full names of the replicas' devices.

    Args:
      devices: Names such as `["GPU:0", "GPU:1"]`. None: all GPUs of this process, else its CPU.

    Raises:
      TypeError: The argument is not a sequence of strings.
      ValueError: No device is named; a device is named twice, unknown, or of another process; or
        the devices are of two kinds.
    """
    if devices is None:
        _take_own_gpus()
        _split_cpu()
    present = {
        _in_full(d.name): d.name
        for d in tf.config.list_logical_devices()
        if d.device_type != "XLA_CPU"
    }
    if devices is None:
        present_gpus = [name for name in present if ":GPU:" in name]
        devices = present_gpus or [name for name in present if ":CPU:" in name][: per_process()]
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(
            f"`devices` must be a list of device names, but received {devices!r}. "
            'Use devices=["CPU:0", "CPU:1"].'
        )
    if not devices:
        raise ValueError(
            "`devices` must name at least one device, but received an empty list. "
            "Leave it out to train on all local GPUs, else on the CPU."
        )
    resolved = tuple(_resolve_one(device, present) for device in devices)
    for device in resolved:
        if resolved.count(device) > 1:
            raise ValueError(
                f"`devices` must name each device once, but received {list(devices)}, where "
                f"{device!r} stands {resolved.count(device)} times. To train several replicas on "
                "one device, split it with `tf.config.set_logical_device_configuration`."
            )
    kinds = sorted({tf.DeviceSpec.from_string(device).device_type for device in resolved})
    if len(kinds) > 1:
        raise ValueError(
            f"`devices` must be of one kind, but received {list(devices)} with "
            f"{' and '.join(kinds)}. Name only the faster ones."
        )
    return resolved


def check_gpus_apart(devices: Sequence[str], processes: ProcessGroup) -> None:
    """Checks that no other process trains on a GPU of this one; all processes must call it.

    GPUs are told from each other by the UUIDs that `nvidia-smi` shows; without it nothing is known.

    Args:
      devices: The devices of this process' replicas.
      processes: The processes of the strategy.

    Raises:
      ClusterError: Names the ranks and the GPU.
    """
    if processes.world_size == 1:
        return
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    physical = gpus_of_logical_devices()
    names = [physical[spec.device_index] for spec in specs if spec.device_type == "GPU"]
    numbers = sorted({int(name.rsplit(":", 1)[-1]) for name in names})
    own = gpus.identities(numbers) if numbers else []
    first: dict[str, int] = {}
    for rank, post in enumerate(processes.all_gather("the GPUs of the ranks", own)):
        for gpu in post.value:
            if first.setdefault(gpu, rank) != rank:
                raise ClusterError(
                    f"{processes.said_by}each rank must have GPUs of its own, for NCCL refuses "
                    f"two ranks on one, but rank {first[gpu]} and rank {rank} both use {gpu}. "
                    "Start as many ranks as there are GPUs, by `tfdp run`, `srun` or `mpirun`; or "
                    f"set {gpus.VISIBLE} for each rank, to -1 to train on CPUs."
                )


def _in_full(name: str) -> str:
    # TensorFlow lists local devices without their process unless a cluster is configured.
    spec = tf.DeviceSpec.from_string(name)
    return spec.replace(
        job=spec.job or "localhost", replica=spec.replica or 0, task=spec.task or 0
    ).to_string()


def _resolve_one(device: str, present: dict[str, str]) -> str:
    try:
        if not device:
            raise ValueError("empty")
        spec = tf.DeviceSpec.from_string(device)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`devices` must hold device names, but received {device!r}. "
            'Write them as in devices=["CPU:0", "CPU:1"].'
        ) from error
    spec = spec.replace(
        device_type=spec.device_type or "CPU",
        device_index=spec.device_index if spec.device_index is not None else 0,
    )
    local = tf.DeviceSpec.from_string(next(iter(present)))
    for field in ("job", "replica", "task"):
        value = getattr(spec, field)
        if value is not None and value != getattr(local, field):
            raise ValueError(
                f"`devices` must belong to this process ({local.job!r}, task {local.task}), but "
                f"received {device!r}. Name the local devices in each process, such as "
                f'"{spec.device_type}:{spec.device_index}".'
            )
    full = spec.replace(job=local.job, replica=local.replica, task=local.task).to_string()
    if full not in present:
        short = [name.split("device:")[-1] for name in present]
        raise ValueError(
            f"`devices` must exist, but received {device!r} and there are only {short}. Name some "
            "of these, or make several logical CPU devices with "
            "`tf.config.set_logical_device_configuration` before TensorFlow starts."
        )
    return present[full]
