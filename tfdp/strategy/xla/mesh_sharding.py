"""The sharding of arrays: batches by rows, variables replicated or sharded as chosen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfdp.base.sharding import largest_share, share_sizes
from tfdp.strategy.xla._jax import are_described
from tfdp.strategy.xla.device_variables import DeviceVariable

# A variable of fewer elements stays whole: to gather it would take longer than it saves.
SMALLEST_SHARD = 2**16


class Layouts:
    """The layouts on devices in a line.

    All is cut evenly, as JAX wants arguments. A batch that the devices do not divide is whole on
    each of them: where several devices have each part of one, XLA's partitioner (jaxlib 0.10.2)
    makes twice the gradient of a depthwise convolution's kernel, silently.

    Args:
      devices: The devices, of JAX.
      shard: What is cut besides batches: None, "optimizer" or "parameters".

    Attributes:
      axis: The name of the devices' axis.
      platform: The kind of the devices, as JAX names it: "cpu", "gpu" or "tpu".
      language: What programs are lowered to, as JAX names it: "cuda" for GPUs that are not there,
        whose kind names none of JAX's backends; the platform else.
      num_processes: The number of the processes whose devices they are.
      replicated: The layout of what is whole on each device.
      are_there: Whether the devices are there; else programs are compiled for them, and not run.
    """

    axis = "devices"

    def __init__(self, devices: Sequence[Any], shard: str | None = None) -> None:
        in_order = sorted(devices, key=lambda device: (device.process_index, device.id))
        self._mesh = Mesh(np.array(in_order), (self.axis,))
        self.shard = shard
        self.platform = devices[0].platform
        self.num_processes = len({device.process_index for device in devices})
        self.are_there = not are_described(devices)
        is_cuda = self.platform == "gpu" and not self.are_there
        self.language = "cuda" if is_cuda else self.platform
        self.replicated = NamedSharding(self._mesh, PartitionSpec())

    def __str__(self) -> str:
        return f"{self.num_devices} x {self._mesh.devices.flat[0].device_kind}"

    @property
    def devices(self) -> list[Any]:
        """The devices, in their order."""
        return list(self._mesh.devices.flat)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return int(self._mesh.devices.size)

    def check_there(self) -> None:
        """Checks that the devices are there.

        Raises:
          RuntimeError: They are described only.
        """
        if not self.are_there:
            raise RuntimeError(
                f"A program must have devices that are there to run, but the strategy's, {self}, "
                "are described by the name of a topology. Ask `strategy.compile_ahead(model, "
                "batch)` what it would be; to run it, make `tfdp.XLAStrategy()` on a host with "
                "TPUs."
            )

    def divide(self, rows: int) -> bool:
        """Returns whether so many rows are cut: whether the devices divide them evenly.

        >>> import jax
        >>> [Layouts(jax.devices()[:4]).divide(rows) for rows in (8, 30, 0)]
        [True, False, False]
        """
        return rows > 0 and rows % self.num_devices == 0

    def given(self, shape: tuple[int, ...], in_parts: bool = False) -> tuple[int, ...]:
        """Returns the shape of what a program is given of an argument.

        Args:
          shape: The argument's shape.
          in_parts: Whether each process gives its own rows, by the rule of
            `tfdp.base.sharding`: as many as divide evenly between its devices; what it has not
            is added, and dropped later.
        """
        if not (shape and in_parts):
            return shape
        each = largest_share(shape[0], self.num_processes)
        each += -each % (self.num_devices // self.num_processes)
        return (self.num_processes * each, *shape[1:])

    def rows(self, shape: tuple[int, ...], in_parts: bool = False) -> list[tuple[int, int]]:
        """Returns where in what is given an argument's rows are: the bounds of each run."""
        if not in_parts or self.given(shape, in_parts) == shape:
            return [(0, shape[0])]
        each = self.given(shape, in_parts)[0] // self.num_processes
        sizes = share_sizes(shape[0], self.num_processes)
        return [(each * rank, each * rank + size) for rank, size in enumerate(sizes) if size]

    def of_argument(self, shape: tuple[int, ...], of_steps: bool = False) -> NamedSharding:
        """Returns the layout of an argument, whose rows are cut.

        Args:
          shape: The argument's shape.
          of_steps: Whether an axis of steps comes before its own.
        """
        own = [self.axis] if shape and self.divide(shape[0]) else []
        return NamedSharding(self._mesh, PartitionSpec(*[None] * of_steps, *own))

    def of_variable(self, variable: DeviceVariable) -> NamedSharding:
        """Returns the layout of a variable: whole, or cut along an axis that divides evenly."""
        if self.shard is None or (self.shard == "optimizer" and variable.is_weight):
            return self.replicated
        shape = tuple(variable.shape)
        if np.prod(shape, dtype=np.int64) < SMALLEST_SHARD:
            return self.replicated
        for axis, size in enumerate(shape):
            if size % self.num_devices == 0:
                return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, self.axis))
        return self.replicated
