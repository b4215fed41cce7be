"""Layouts of weights that are derived from a traced program.

They are those of Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language
Models Using Model Parallelism" (arXiv:1909.08053), for any program: a product whose result feeds
another one through elementwise operations is sharded by columns and the other one by rows,
attention by heads, tables by their rows. None of it is by names: `axis_groups` says which axes are
sharded together, and what that sends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.partition.source import SourceGraph
from tfdp.strategy.xla.axis_groups import AxisGroups, Group, MeshCollective, Weight
from tfdp.strategy.xla.axis_rules import walk
from tfdp.strategy.xla.device_variables import DeviceVariable, variable_of
from tfdp.strategy.xla.layout_maps import BATCH

# A group whose largest weight has fewer bytes stays replicated.
SMALLEST = 2**16

_USES = {"columns": "by columns", "rows": "by rows", "table": "by rows of a table"}


class WeightLayout(NamedTuple):
    """The layout of a weight, and why it has it.

    Attributes:
      path: The weight's path.
      axes: For each of its axes the axis of the mesh along which it is sharded, or None.
      why: How products use what is sharded, or why nothing is.
      bytes_saved: The bytes that a device does not hold of it.
      collectives: What a step sends for it, of the whole batch, forward and backward.
    """

    path: str
    axes: tuple[str | None, ...]
    why: str
    bytes_saved: int = 0
    collectives: tuple[MeshCollective, ...] = ()

    def __str__(self) -> str:
        if not self.bytes_saved:
            return f"{self.path}: replicated, {self.why}"
        sent = ", ".join(f"{each.kind} of {_said(each.bytes)}" for each in self.collectives)
        saved = _said(self.bytes_saved)
        return f"{self.path}: {self.axes}, {self.why}; saves {saved}; {sent or 'sends nothing'}"


def derive(mesh: Any) -> Callable[[Any], dict[tuple[str, tuple[int, ...]], WeightLayout]]:
    """Returns the function that derives the layouts of a program's weights, by path and shape.

    Paths alone are not unique: those of another model, made in the scope later, are the same.

    Args:
      mesh: The sizes of the mesh's axes by their names.

    Raises:
      ValueError: The mesh has not one axis besides that of the batch.

    >>> derive({"batch": 4, "model": 2}) is not None
    True
    >>> derive({"batch": 8})
    Traceback (most recent call last):
        ...
    ValueError: With layout_map="auto" `mesh` must have two axes, "batch" and the one along which...
    """
    axes = [axis for axis in mesh if axis != BATCH] if isinstance(mesh, Mapping) else []
    if len(axes) != 1:
        raise ValueError(
            'With layout_map="auto" `mesh` must have two axes, "batch" and the one along which '
            f"weights are sharded, but received {mesh!r}. Use one such as "
            'mesh={"batch": 4, "model": 2}, or write the layouts out.'
        )

    def of_program(program: Any) -> dict[tuple[str, tuple[int, ...]], WeightLayout]:
        captured = program.captured_inputs
        first = len(program.inputs) - len(captured)
        weights = {
            place: Weight(variable.path, tuple(variable.shape), _bytes(variable))
            for place, tensor in enumerate(captured, first)
            if (variable := variable_of(tensor)) is not None and _is_weight(variable)
        }
        found = auto_layout(SourceGraph(program.graph), first, weights, mesh[axes[0]], axes[0])
        own = zip(weights.values(), found, strict=True)
        return {(weight.path, weight.shape): layout for weight, layout in own}

    return of_program


def _is_weight(variable: DeviceVariable) -> bool:
    """Returns whether a variable may be sharded, and has a layout of its own."""
    dtype: tf.DType = variable.dtype
    return variable.follows is None and bool(variable.shape.rank) and dtype.is_floating


def _bytes(variable: DeviceVariable) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)


def auto_layout(
    graph: SourceGraph,
    num_arguments: int,
    weights: Mapping[int, Weight],
    size: int,
    axis: str = "model",
    smallest: int | None = None,
) -> list[WeightLayout]:
    """Derives the layouts of weights from a program.

    1. Groups that cannot be sharded are left out: of the batch's axes, residual streams, what an
       operation needs gathered, or what the mesh does not divide.
    2. Of the others those of tables' rows come first, then that which saves the most bytes; of
       equal ones that which sends the least, and then the first. Each is sharded if none of its
       tensors has another axis that is.
    3. Weights that have none of these axes are replicated.

    Args:
      graph: The traced program.
      num_arguments: The number of its arguments, which what it captures follows.
      weights: By the places of their handles among what the program is given its variables.
      size: The number of places of the mesh's axis.
      axis: The axis' name.
      smallest: A group whose largest weight has fewer bytes stays replicated; None: `SMALLEST`.

    Returns:
      The layout of each weight, in their order.
    """
    smallest = SMALLEST if smallest is None else smallest
    groups = AxisGroups(graph, num_arguments, weights, size)
    walk(groups)
    every = groups.all()
    refused = {
        id(group): why
        for group in every
        if (why := _refusal(groups, group, size, smallest)) is not None
    }
    conflicts: dict[int, set[int]] = {id(group): set() for group in every}
    for together in groups.together():
        for place, group in enumerate(together):
            for other in together[:place]:
                if other is group:
                    refused.setdefault(id(group), "two axes of a tensor would be sharded")
                conflicts.setdefault(id(group), set()).add(id(other))
                conflicts.setdefault(id(other), set()).add(id(group))
    chosen: list[Group] = []
    open_ = [group for group in every if id(group) not in refused]
    for group in sorted(open_, key=lambda each: _order(groups, each)):
        taken = next((each for each in chosen if id(each) in conflicts[id(group)]), None)
        if taken is None:
            chosen.append(group)
        else:
            first = groups.weights[min(taken.weights)[0]].path
            refused[id(group)] = f"others of its axes are sharded with {first}"
    return [_layout(groups, place, every, chosen, refused, axis) for place in weights]


def _layout(
    groups: AxisGroups,
    place: int,
    every: Sequence[Group],
    chosen: Sequence[Group],
    refused: Mapping[int, str],
    axis: str,
) -> WeightLayout:
    weight = groups.weights[place]
    own = {each: group for group in every for at, each in group.weights if at == place}
    at = next((each for each in own if own[each] in chosen), None)
    if at is None:
        reasons = [refused[id(own[each])] for each in sorted(own) if id(own[each]) in refused]
        why = "; ".join(dict.fromkeys(reasons)) or "no axis has more than one entry"
        return WeightLayout(weight.path, (None,) * len(weight.shape), why)
    group = own[at]
    axes = tuple(axis if each == at else None for each in range(len(weight.shape)))
    uses = sorted(group.uses.get(place, ()))
    first, _ = min(group.weights)
    why = " and ".join(_USES[use] for use in uses) or f"with {groups.weights[first].path}"
    sent = [each for each in group.sent.values() if each.weight == place]
    if first == place:
        sent += [each for each in group.sent.values() if each.weight is None]
    saved = weight.bytes - weight.bytes // groups.size
    return WeightLayout(weight.path, axes, why, saved, tuple(sent))


def _refusal(groups: AxisGroups, group: Group, size: int, smallest: int) -> str | None:
    """Returns why a group is not sharded; None: it can be."""
    if group.is_data:
        return "an axis of the batch"
    if groups.is_residual(group):
        return "a residual stream"
    if group.gathered_by is not None:
        return f"{group.gathered_by} needs it gathered"
    if not group.uses:
        return "no product or gather uses it by such an axis"
    shapes = {groups.weights[place].shape[axis] for place, axis in group.weights}
    if any(each % size for each in shapes):
        return f"{size} does not divide {min(each for each in shapes if each % size)}"
    largest = max(groups.weights[place].bytes for place, _ in group.weights)
    if largest < smallest:
        return f"fewer than {smallest} bytes"
    gathers = sum(each.bytes for each in group.sent.values() if each.kind == "all-gather")
    if gathers > _sent(group) - gathers:
        needs = f"{' and '.join(sorted(group.parted))} would have what is computed of it gathered"
        return f"{needs}, {_said(gathers)} a step"
    return None


def _order(groups: AxisGroups, group: Group) -> tuple[bool, int, int]:
    """Returns by what a group comes before others: tables' rows, bytes saved, bytes sent."""
    is_of_table = any("table" in uses for uses in group.uses.values())
    saved = sum(groups.weights[place].bytes for place, _ in group.weights)
    return not is_of_table, -saved, _sent(group)


def _sent(group: Group) -> int:
    return sum(each.bytes for each in group.sent.values())


def _said(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"
