"""How arrays lie on the devices: batches cut along their rows, variables whole or cut as chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfdp.shares import largest_share, share_sizes
from tfdp.tpu.variables import DeviceVariable

# A variable of fewer elements stays whole: to gather it would take longer than it saves.
SMALLEST_CUT = 2**16

_AXIS = "batch"


class Layouts:
    """The layouts on a mesh of devices with one axis.

    Args:
      devices: The devices, of JAX.
      shard: What is cut besides batches: None, "optimizer" or "parameters".

    Attributes:
      platform: The kind of the devices, as JAX names it: "tpu" or "cpu".
      num_processes: The number of the processes whose devices they are.
      replicated: The layout of what is whole on each device.
    """

    def __init__(self, devices: Sequence[Any], shard: str | None = None) -> None:
        in_order = sorted(devices, key=lambda device: (device.process_index, device.id))
        self._mesh, self.shard = Mesh(np.array(in_order), (_AXIS,)), shard
        self.platform = devices[0].platform
        self.num_processes = len({device.process_index for device in devices})
        self.replicated = NamedSharding(self._mesh, PartitionSpec())

    def __str__(self) -> str:
        return f"{self.num_devices} x {self._mesh.devices.flat[0].device_kind}"

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return int(self._mesh.devices.size)

    def padded(self, shape: tuple[int, ...], in_parts: bool = False) -> int:
        """Returns the rows that an argument is given, to be cut evenly; those added are dropped.

        A program takes its own rows of it first: what it computes is the batch's alone.

        Args:
          shape: The argument's shape.
          in_parts: Whether each process has its own rows, by the rule of `tfdp.shares`.
        """
        rows = shape[0]
        if in_parts:
            own = largest_share(rows, self.num_processes)
            return self.num_processes * (own + -own % (self.num_devices // self.num_processes))
        return rows if rows < self.num_devices else rows + -rows % self.num_devices

    def rows(self, shape: tuple[int, ...], in_parts: bool = False) -> list[tuple[int, int]]:
        """Returns where in what is given an argument's rows are: the bounds of each run.

        >>> import jax
        >>> Layouts(jax.devices()[:4]).rows((30, 2))
        [(0, 30)]
        """
        if not in_parts:
            return [(0, shape[0])]
        each = self.padded(shape, in_parts) // self.num_processes
        sizes = share_sizes(shape[0], self.num_processes)
        return [(each * rank, each * rank + size) for rank, size in enumerate(sizes) if size]

    def of_argument(
        self, shape: tuple[int, ...], of_steps: bool = False, in_parts: bool = False
    ) -> NamedSharding:
        """Returns the layout of an argument: its rows cut, if there is one for each device.

        Args:
          shape: The argument's shape.
          of_steps: Whether an axis of steps comes before its own.
          in_parts: Whether each process has its own rows: then they are cut in any case.
        """
        if not shape or (shape[0] < self.num_devices and not in_parts):
            return self.replicated
        return NamedSharding(self._mesh, PartitionSpec(*[None] * of_steps, _AXIS))

    def of_variable(self, variable: DeviceVariable) -> NamedSharding:
        """Returns the layout of a variable: whole, or cut along an axis that divides evenly."""
        if self.shard is None or (self.shard == "optimizer" and variable.is_weight):
            return self.replicated
        shape = tuple(variable.shape)
        if np.prod(shape, dtype=np.int64) < SMALLEST_CUT:
            return self.replicated
        for axis, size in enumerate(shape):
            if size % self.num_devices == 0:
                return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, _AXIS))
        return self.replicated
