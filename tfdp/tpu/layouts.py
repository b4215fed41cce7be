"""How arrays lie on the devices: batches cut along their rows, variables whole or cut as chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfdp.tpu._jax import are_described
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
      replicated: The layout of what is whole on each device.
      are_there: Whether the devices are there; else programs are compiled for them, and not run.
    """

    def __init__(self, devices: Sequence[Any], shard: str | None = None) -> None:
        self._mesh, self.shard = Mesh(np.array(devices), (_AXIS,)), shard
        self.platform = devices[0].platform
        self.are_there = not are_described(devices)
        self.replicated = NamedSharding(self._mesh, PartitionSpec())

    def __str__(self) -> str:
        return f"{self.num_devices} x {self._mesh.devices.flat[0].device_kind}"

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
                "batch)` what it would be; to run it, make `tfdp.TPUStrategy()` on a host with "
                "TPUs."
            )

    def padded(self, shape: tuple[int, ...]) -> int:
        """Returns the rows that an argument is given, to be cut evenly; those added are dropped.

        A program takes its own rows of it first: what it computes is the batch's alone.
        """
        rows = shape[0]
        return rows if rows < self.num_devices else rows + -rows % self.num_devices

    def of_argument(self, shape: tuple[int, ...], of_steps: bool = False) -> NamedSharding:
        """Returns the layout of an argument: its rows cut, if there is one for each device.

        Args:
          shape: The argument's shape.
          of_steps: Whether an axis of steps comes before its own.
        """
        if not shape or shape[0] < self.num_devices:
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

    def placed(self, value: np.ndarray, sharding: NamedSharding) -> Any:
        """Returns an array on the devices, of a value that every process has whole."""
        with jax.enable_x64(True):
            if jax.process_count() == 1:
                return jax.device_put(value, sharding)
            return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
