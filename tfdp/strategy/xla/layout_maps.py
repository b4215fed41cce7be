"""Layout maps: by the path of a variable, the axes of a mesh along which it is sharded."""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

# The axis of a mesh along which batches are sharded.
BATCH = "batch"

#: For each axis of a variable the axis of the mesh along which it is sharded, or None.
Axes = tuple[str | None, ...]


def checked_mesh(mesh: Mapping[str, int] | None, num_devices: int) -> dict[str, int]:
    """Returns the sizes of a mesh's axes, by their names; without a mesh all are for the batch.

    Args:
      mesh: The mesh that a strategy is given.
      num_devices: The number of devices.

    Raises:
      ValueError: It is no mesh over these devices.

    >>> checked_mesh({"batch": 4, "model": 2}, 8), checked_mesh(None, 8)
    ({'batch': 4, 'model': 2}, {'batch': 8})
    >>> checked_mesh({"batch": 4, "model": 4}, 8)
    Traceback (most recent call last):
        ...
    ValueError: `mesh` must have as many places as there are devices, 8, but received {'batch': 4,
    'model': 4}. Use mesh={'batch': 2, 'model': 4}.
    """
    if mesh is None:
        return {BATCH: num_devices}
    columns = 1 + (num_devices % 2 == 0)
    use = {BATCH: num_devices // columns, "model": columns}
    sizes = {name: _size(size) for name, size in mesh.items()} if isinstance(mesh, Mapping) else {}
    if not isinstance(mesh, Mapping):
        must = "be a dict, from the names of its axes to their sizes"
    elif not all(map(_is_name, sizes)):
        must = "name its axes with strings that are Python identifiers"
    elif not all(sizes.values()):
        must = "have sizes that are positive integers"
    elif BATCH not in sizes:
        must = 'have an axis "batch", along which batches are sharded'
    elif math.prod(sizes.values()) != num_devices:
        must = f"have as many places as there are devices, {num_devices}"
        others = math.prod(sizes.values()) // sizes[BATCH]
        use = use if num_devices % others else sizes | {BATCH: num_devices // others}
    else:
        return sizes
    raise ValueError(f"`mesh` must {must}, but received {mesh!r}. Use mesh={use}.")


def check_given(layout_map: object, mesh: Mapping[str, int] | None) -> None:
    """Checks what a strategy is given beside its mesh.

    Raises:
      ValueError: It is neither a mapping nor "auto", or there is no mesh.

    >>> check_given({"dense.*kernel": (None, "model")}, None)
    Traceback (most recent call last):
        ...
    ValueError: `layout_map` must come with the mesh whose axes it names, but received mesh=None...
    """
    if layout_map is None:
        return
    if not (isinstance(layout_map, Mapping) or layout_map == "auto"):
        raise ValueError(
            '`layout_map` must be "auto" or a mapping from patterns to axes of `mesh`, but '
            f'received {layout_map!r}. Use layout_map="auto", or one such as '
            'layout_map={"dense.*kernel": (None, "model")}.'
        )
    if mesh is None:
        raise ValueError(
            "`layout_map` must come with the mesh whose axes it names, but received mesh=None. Add "
            'one such as mesh={"batch": 4, "model": 2} for 8 devices, or leave `layout_map` out.'
        )


class LayoutMap:
    """The layouts of variables by their paths.

    A path that is written out comes first, then the first pattern that is found in the path, by
    `re.search`. In a `keras.distribution.LayoutMap` the path is looked up as Keras does.

    Args:
      given: A layout for each pattern: a tuple, or what has one as `axes`, such as
        `keras.distribution.TensorLayout`. The mapping may be a `keras.distribution.LayoutMap`.
      mesh: The sizes of the mesh's axes.

    Raises:
      ValueError: A pattern is no regular expression, or a layout does not fit the mesh.

    >>> layouts = LayoutMap({"dense.*kernel": (None, "model")}, {"batch": 4, "model": 2})
    >>> layouts.axes_of("mlp/dense_1/kernel", (16, 6))
    (None, 'model')
    >>> layouts.axes_of("mlp/norm/gamma", (16,)) is None
    True
    >>> layouts.axes_of("mlp/dense_1/kernel", (16, 3))
    Traceback (most recent call last):
        ...
    ValueError: A layout must divide the axes of a variable, but 'dense.*kernel' shards axis 1 ...
    """

    def __init__(self, given: Mapping[str, Any], mesh: Mapping[str, int]) -> None:
        self._mesh = mesh
        self._of_keras = given if isinstance(given, keras.distribution.LayoutMap) else None
        if self._of_keras is not None:
            _check_mesh_of(self._of_keras, mesh)
        # Keras' mapping looks for patterns as well; its keys and their own values are plain.
        self._axes = {pattern: _checked_axes(pattern, given[pattern], mesh) for pattern in given}
        self._patterns = {pattern: _compiled(pattern) for pattern in given}

    def items(self) -> Iterable[tuple[str, Axes]]:
        """Returns the patterns with their layouts."""
        return self._axes.items()

    def axes_of(self, path: str, shape: Sequence[int], is_weight: bool = True) -> Axes | None:
        """Returns the layout of a variable; None: no pattern is found in its path.

        Args:
          path: The variable's path.
          shape: Its shape.
          is_weight: Whether it is a weight; else a layout that does not fit is not its own, such as
            that of a table of which an optimizer keeps sums of rows.

        Raises:
          ValueError: The layout has another number of axes, or an axis is not divided.
        """
        pattern = self._pattern_of(path)
        if pattern is None:
            return None
        axes = self._axes[pattern]
        if len(axes) != len(shape):
            if not is_weight:
                return None
            raise ValueError(
                "A layout must have an entry for each axis of a variable, but "
                f"{pattern!r} has {axes} for {path!r} of shape {tuple(shape)}. Use a pattern that "
                "tells them apart, or as many entries, with None for an axis that is not sharded."
            )
        for place, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if axis is not None and size % self._mesh[axis]:
                if not is_weight:
                    return None
                raise ValueError(
                    f"A layout must divide the axes of a variable, but {pattern!r} shards axis "
                    f"{place} of {path!r} of shape {tuple(shape)} along {axis!r}, which has "
                    f"{self._mesh[axis]} places. Shard another of its axes, or make this one a "
                    f"multiple of {self._mesh[axis]}."
                )
        return axes

    def check_found(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Checks that each pattern is the one that gives a variable its layout.

        Args:
          shapes: The shapes of all variables by their paths.

        Raises:
          ValueError: A pattern gives none.
        """
        found = {path: self._pattern_of(path) for path in sorted(shapes)}
        fits = {
            found[path] for path in found if self.axes_of(path, shapes[path], False) is not None
        }
        for pattern in self._axes:
            if pattern not in fits:
                raise ValueError(
                    "Each pattern of `layout_map` must give a variable its layout, but "
                    f"{self._why_none(pattern, found, shapes)}, or leave the pattern out."
                )

    def _why_none(
        self, pattern: str, found: Mapping[str, str | None], shapes: Mapping[str, Sequence[int]]
    ) -> str:
        """Returns why a pattern gives no variable its layout, and what to do."""
        misfit = next((path for path in found if found[path] == pattern), None)
        if misfit is not None:
            return (
                f"{pattern!r} has {self._axes[pattern]} for {misfit!r} of shape "
                f"{tuple(shapes[misfit])}. Use an entry for each axis, None where the mesh does "
                "not divide it"
            )
        hits = (path for path, first in found.items() if first is not None)
        hidden = next((path for path in hits if self._patterns[pattern].search(path)), None)
        if hidden is not None:
            return (
                f"{found[hidden]!r} comes before {pattern!r}, and is found in {hidden!r} and all "
                f"others where that is found. Put {pattern!r} first"
            )
        named = ", ".join([*found][:20]) + ", ..." * (len(found) > 20)
        return (
            f"{pattern!r} is found in no path of {named}. Take one from `[weight.path for weight "
            "in model.weights]`, make all models in the scope before the first step"
        )

    def _pattern_of(self, path: str) -> str | None:
        if path in self._axes:
            return path
        if self._of_keras is not None:
            found = self._of_keras[path]  # an error of Keras' if it has several
            return next((key for key in self._axes if self._of_keras[key] is found), None)
        each = self._patterns.items()
        return next((pattern for pattern, compiled in each if compiled.search(path)), None)


def _check_mesh_of(layout_map: keras.distribution.LayoutMap, mesh: Mapping[str, int]) -> None:
    own = layout_map.device_mesh
    sizes = None if own is None else dict(zip(own.axis_names, own.shape, strict=True))
    if sizes not in (None, mesh):
        raise ValueError(
            "The mesh of a `keras.distribution.LayoutMap` must be the strategy's, but it has "
            f"{sizes} and `mesh` is {dict(mesh)}. Use one of them for both."
        )


def _is_name(axis: Any) -> bool:
    return isinstance(axis, str) and axis.isidentifier()


def _size(size: Any) -> int:
    """Returns the size of an axis, which may be NumPy's; 0 if it is none."""
    try:
        return 0 if isinstance(size, bool) else max(operator.index(size), 0)
    except TypeError:
        return 0


def _compiled(pattern: Any) -> re.Pattern[str]:
    try:
        if not isinstance(pattern, str):
            raise TypeError(f"it is of type {type(pattern).__name__}, and not a string")
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            "`layout_map` must give layouts by regular expressions, but received "
            f"{pattern!r} ({error}). Use one such as 'dense.*kernel'."
        ) from error


def _checked_axes(pattern: str, given: Any, mesh: Mapping[str, int]) -> Axes:
    """Returns the axes of a layout, of which a mesh must have each once at most."""
    axes = getattr(given, "axes", given)
    use = (
        f"Use a tuple with one of {[*mesh]} or None for each axis, such as (None, {[*mesh][-1]!r})."
    )
    if not isinstance(axes, (tuple, list)):
        raise ValueError(f"A layout must be a tuple, but {pattern!r} has {given!r}. {use}")
    names = [axis for axis in axes if axis is not None]
    for axis in names:
        if not isinstance(axis, str) or axis not in mesh:
            raise ValueError(
                f"A layout must name axes of the mesh, {[*mesh]}, but {pattern!r} has {axis!r} in "
                f"{tuple(axes)}. {use}"
            )
        if names.count(axis) > 1:
            raise ValueError(
                f"A layout must shard one axis of a variable along an axis of the mesh, but "
                f"{pattern!r} has {axis!r} twice in {tuple(axes)}. {use}"
            )
    return tuple(axes)
