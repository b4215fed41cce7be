"""The sharding of arrays: batches by rows, variables replicated or sharded as chosen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfdp.base.sharding import largest_share, share_sizes
from tfdp.strategy.xla._jax import are_described
from tfdp.strategy.xla.device_variables import DeviceVariable
from tfdp.strategy.xla.layout_maps import BATCH, LayoutMap, checked_mesh

# A variable of fewer elements stays whole: to gather it would take longer than it saves.
SMALLEST_SHARD = 2**16


class Layouts:
    """The layouts on the devices of a mesh.

    All is sharded evenly, as JAX wants arguments: batches along the mesh's axis "batch", and
    variables as they are told to be. A batch that this axis does not divide is whole on each
    device.

    Args:
      devices: The devices, of JAX.
      shard: What is sharded along the batch axis besides batches: None, "optimizer" or
        "parameters".
      mesh: The sizes of the mesh's axes by their names; None: the batch has all devices.
      layout_map: The layouts of variables by patterns of their paths. A function of a traced
        program returns those of the variables that it has, each for its path.

    Attributes:
      mesh: The sizes of the mesh's axes.
      shardy: The mesh as Shardy writes it.
      platform: The kind of the devices, as JAX names it: "cpu", "gpu" or "tpu".
      language: What programs are lowered to, as JAX names it: "cuda" for GPUs that are not there,
        whose kind names none of JAX's backends; the platform else.
      num_processes: The number of the processes whose devices they are.
      replicated: The layout of what is whole on each device.
      are_there: Whether the devices are there; else programs are compiled for them, and not run.

    Raises:
      ValueError: The mesh or a layout is out of its range.
    """

    def __init__(
        self,
        devices: Sequence[Any],
        shard: str | None = None,
        mesh: Mapping[str, int] | None = None,
        layout_map: Mapping[str, Any] | Callable[[Any], Mapping[Any, Any]] | None = None,
    ) -> None:
        in_order = sorted(devices, key=lambda device: (device.process_index, device.id))
        self.mesh = checked_mesh(mesh, len(devices))
        self._mesh = Mesh(np.array(in_order).reshape([*self.mesh.values()]), tuple(self.mesh))
        axes = ", ".join(f'"{name}"={size}' for name, size in self.mesh.items())
        self.shardy = f"mesh<[{axes}]>"
        self.shard = shard
        self.platform = devices[0].platform
        self.num_processes = len({device.process_index for device in devices})
        self._check_processes()
        self.are_there = not are_described(devices)
        is_cuda = self.platform == "gpu" and not self.are_there
        self.language = "cuda" if is_cuda else self.platform
        self.replicated = NamedSharding(self._mesh, PartitionSpec())
        self._derive = layout_map if callable(layout_map) else None
        self._derived: dict[tuple[str, tuple[int, ...]], Any] = {}  # by path and shape
        given = {} if layout_map is None or callable(layout_map) else layout_map
        self._layout_map = LayoutMap(given, self.mesh)
        self._is_settled = False

    def _check_processes(self) -> None:
        """Checks that each process has all of its own rows of a batch."""
        has_rows = next(iter(self.mesh)) == BATCH and not self.mesh[BATCH] % self.num_processes
        if self.num_processes > 1 and not has_rows:
            each = self.num_devices // self.num_processes
            raise ValueError(
                'With several processes `mesh` must begin with its axis "batch", of a size that is '
                "a multiple of their number, so that each has whole rows, but received "
                f"{self.mesh} for {self.num_processes} processes. Use "
                f'mesh={{"batch": {self.num_processes}, "model": {each}}}.'
            )

    def __str__(self) -> str:
        kind = self._mesh.devices.flat[0].device_kind
        if len(self.mesh) == 1:
            return f"{self.num_devices} x {kind}"
        return f"{' x '.join(f'{size} {name}' for name, size in self.mesh.items())} x {kind}"

    def options(self) -> dict[str, Any]:
        """Returns what the layouts were made of, as JSON, to be compared.

        Axes of the mesh and patterns are lists, whose order counts: it gives devices their places,
        and variables the first of their patterns.
        """
        found: dict[str, Any] = {"devices": str(self), "shard": self.shard}
        if self._derive is not None:
            layout_map: Any = "auto"
        else:
            layout_map = [[pattern, list(axes)] for pattern, axes in self._layout_map.items()]
        if len(self.mesh) > 1 or layout_map:
            found |= {"mesh": [list(axis) for axis in self.mesh.items()], "layout_map": layout_map}
        return found

    def describe(self) -> dict[str, Any]:
        """Describes the layouts, as JSON; a function's are known once it was called."""
        found = self.options()
        if "mesh" in found:
            own = ((path, each.axes) for (path, _), each in self._derived.items())
            every = self._layout_map.items() if self._derive is None else own
            layouts = {path: list(axes) for path, axes in every if any(axes)}
            is_open = self._derive is not None and not self._derived
            found |= {"mesh": self.mesh, "layout_map": "auto" if is_open else layouts}
        return found

    @property
    def devices(self) -> list[Any]:
        """The devices, in their order."""
        return list(self._mesh.devices.flat)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return int(self._mesh.devices.size)

    @property
    def num_batch_shards(self) -> int:
        """The number of the shards of a batch."""
        return self.mesh[BATCH]

    @property
    def smaller_shards(self) -> list[str]:
        """The options by which a device would have less of a model, as code.

        >>> import jax
        >>> Layouts(jax.devices()[:4]).smaller_shards
        ['shard="optimizer"', 'layout_map="auto" with mesh={"batch": 2, "model": 2}']
        >>> Layouts(jax.devices()[:4], "parameters", {"batch": 1, "model": 4}).smaller_shards
        []
        """
        others = {None: "optimizer", "optimizer": "parameters"}
        found = [f'shard="{others[self.shard]}"'] if self.shard in others else []
        batch, odd = divmod(self.num_batch_shards, 2)
        if not odd and not batch % self.num_processes:
            mesh = f'{{"batch": {batch}, "model": {self.num_devices // batch}}}'
            found.append(f'layout_map="auto" with mesh={mesh}')
        return found

    def settle(self, program: Any, variables: Iterable[DeviceVariable]) -> None:
        """Settles the layouts of variables, before a program that has them is lowered.

        Those of a layout map are settled before the first program. Derived ones are settled before
        the first program that has the variable.

        Args:
          program: The program as it was traced, of which layouts may be derived.
          variables: All variables that the strategy has.

        Raises:
          ValueError: A pattern gives no variable its layout.
        """
        if self._derive is not None:
            self._derived = {**self._derive(program), **self._derived}
            return
        if self._is_settled:
            return
        own = [each for each in variables if each.follows is None and each.shape.rank]
        for each in own:
            if each.is_weight:
                self._mapped(each)  # which raises where its layout does not fit
        self._layout_map.check_found({each.path: tuple(each.shape) for each in own})
        self._is_settled = True

    def reasons(self, variables: Iterable[DeviceVariable]) -> tuple[str, ...]:
        """Returns the derived layouts of variables, as lines of text: see `auto_layout`."""
        keys = ((variable.path, tuple(variable.shape)) for variable in variables)
        return tuple(str(self._derived[key]) for key in keys if key in self._derived)

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
        """Returns whether so many rows are sharded: whether the batch axis divides them.

        >>> import jax
        >>> [Layouts(jax.devices()[:4]).divide(rows) for rows in (8, 30, 0)]
        [True, False, False]
        """
        return rows > 0 and rows % self.num_batch_shards == 0

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
        each += -each % (self.num_batch_shards // self.num_processes)
        return (self.num_processes * each, *shape[1:])

    def rows(self, shape: tuple[int, ...], in_parts: bool = False) -> list[tuple[int, int]]:
        """Returns where in what is given an argument's rows are: the bounds of each run."""
        if not in_parts or self.given(shape, in_parts) == shape:
            return [(0, shape[0])]
        each = self.given(shape, in_parts)[0] // self.num_processes
        sizes = share_sizes(shape[0], self.num_processes)
        return [(each * rank, each * rank + size) for rank, size in enumerate(sizes) if size]

    def of_argument(self, shape: tuple[int, ...], of_steps: bool = False) -> NamedSharding:
        """Returns the layout of an argument, whose rows are sharded.

        Args:
          shape: The argument's shape.
          of_steps: Whether an axis of steps comes before its own.
        """
        own = [BATCH] if shape and self.divide(shape[0]) else []
        return NamedSharding(self._mesh, PartitionSpec(*[None] * of_steps, *own))

    def of_variable(self, variable: DeviceVariable) -> NamedSharding:
        """Returns the layout of a variable between steps.

        Its own axes are sharded as the layout map says, or as those of the weight that it is kept
        for, and one more along the batch axis, where `shard` asks for it and one is divided.

        Raises:
          ValueError: A layout does not fit the variable.
        """
        shape = tuple(variable.shape)
        axes = [*self._mapped(variable), *[None] * len(shape)][: len(shape)]
        is_left = self.shard is None or (self.shard == "optimizer" and variable.is_weight)
        if not is_left and BATCH not in axes and np.prod(shape, dtype=np.int64) >= SMALLEST_SHARD:
            for place, size in enumerate(shape):
                if axes[place] is None and size % self.num_batch_shards == 0:
                    axes[place] = BATCH
                    break
        return self._layout(axes)

    def spread(self, shape: tuple[int, ...]) -> NamedSharding | None:
        """Returns a layout for a value until its own is settled: a shard on each of our devices.

        None: the value stays on the host. No axis is divided, or devices have all of it later, as
        the host then can.
        """
        if not self.are_there or (len(self.mesh) == 1 and self.shard is None):
            return None
        own = [each for each in self.devices if each.process_index == jax.process_index()]
        for place, size in enumerate(shape):
            if size % len(own) == 0:
                axes = PartitionSpec(*[None] * place, BATCH)
                return NamedSharding(Mesh(np.array(own), (BATCH,)), axes)
        return None

    def gathered(self, variable: DeviceVariable) -> str | None:
        """Returns how a weight's axes lie where it is gathered for the batch, as Shardy writes it.

        None: it is not sharded along the batch axis.
        """
        layout, whole = self.of_variable(variable), self.in_a_step(variable)
        if layout == whole:
            return None
        axes = [*whole.spec, *[None] * variable.shape.rank][: variable.shape.rank]
        return ", ".join("{}" if axis is None else f'{{"{axis}"}}' for axis in axes)

    def in_a_step(self, variable: DeviceVariable) -> NamedSharding:
        """Returns the layout of a variable that a step computes with: gathered for the batch."""
        axes = [None if axis == BATCH else axis for axis in self.of_variable(variable).spec]
        return self._layout(axes)

    def _mapped(self, variable: DeviceVariable) -> Sequence[str | None]:
        """Returns the axes that the layout map gives a variable, or the weight that it follows."""
        shape, weight = tuple(variable.shape), variable.follows
        if not isinstance(weight, DeviceVariable):
            if self._derive is not None:
                derived = self._derived.get((variable.path, shape))
                return () if derived is None else derived.axes
            return self._layout_map.axes_of(variable.path, shape, variable.is_weight) or ()
        return self._mapped(weight) if tuple(weight.shape) == shape else ()

    def _layout(self, axes: Sequence[str | None]) -> NamedSharding:
        """Returns the layout of an array by the axes of the mesh; none after the last one."""
        named = list(axes)
        while named and named[-1] is None:
            named.pop()
        return NamedSharding(self._mesh, PartitionSpec(*named)) if named else self.replicated
