"""Updates in `strategy.run`: one program of one device's, given each replica's own gradients.

Replicas have summands of the gradients that reach an optimizer. What becomes of them, sums before
they are clipped, one sum for a window of accumulated gradients, parts of sums under `shard`,
follows from the optimizer's own program, as in a step of Keras'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter._keras import BaseOptimizer, key_of_variable
from tfdp.keras_adapter.gradients.nested_optimizers import wrapped
from tfdp.keras_adapter.step import Step
from tfdp.replicas import OfSummands, Value, cutter_of

# What calls an optimizer, given gradients.
Run = Callable[[list[Value | None]], Any]

# The attribute of an optimizer with the programs that it has eagerly. Keras would track one that
# is set.
_PROGRAMS = "tfdp_update_programs"


class SummedUpdates:
    """The updates of one call of `strategy.run`: local replicas make the same ones, in order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, OfSummands]] = []
        self._next: dict[int, int] = {}

    def update(
        self,
        step: Step,
        optimizer: BaseOptimizer,
        grads: Sequence[Value | None],
        variables: Sequence[Any],
        run: Run,
    ) -> Any:
        """Makes an update by the sums of a replica's gradients and all others'.

        Args:
          step: The replica's step.
          optimizer: The outermost optimizer; it is built if it is not.
          grads: The replica's own gradients.
          variables: The variables that it updates.
          run: Calls the optimizer.

        Returns:
          What the optimizer returns.

        Raises:
          RuntimeError: The replicas' updates differ.
        """
        if not optimizer.built:
            with keras.name_scope(optimizer.name):
                optimizer.build(list(variables))
            optimizer.built = True
        flat = _Flat(step, grads)
        keys = [key_of_variable(optimizer, variable) for variable in variables]
        kind = (id(optimizer), tuple(keys), *flat.kind)
        if tf.executing_eagerly():
            return _eagerly(step, optimizer, variables, kind, flat, run)
        index = step.trace.index
        place = self._next.setdefault(index, 0)
        self._next[index] += 1
        if place == len(self._made):
            self._made.append((kind, flat.program(step, run)))
        known, program = self._made[place]
        if known != kind:
            raise RuntimeError(
                f"Replicas must make the same updates in the same order, but update {place + 1} of "
                f"{optimizer.name!r} on {step.trace.name} has other gradients than on the first "
                "replica of its process. Let no update depend on the replica's number."
            )
        return program.on_replica(index, flat.tensors)


def _eagerly(
    step: Step,
    optimizer: BaseOptimizer,
    variables: Sequence[Any],
    kind: Any,
    flat: _Flat,
    run: Run,
) -> Any:
    """Makes an update by a program that is kept, unless Python may do otherwise the next time."""
    programs = vars(optimizer).setdefault(_PROGRAMS, {})
    said = settings(optimizer, variables)

    def merged(strategy: tf.distribute.Strategy, *values: Any) -> Any:
        program = None if said is None else programs.get((kind, said))
        if program is None:
            program = flat.program(step, run)
        if said is not None:
            programs[kind, said] = program
        return program.on_all(list(map(strategy.experimental_local_results, values)))

    # Each replica copies its values: TensorFlow would take one tensor of all for a single value.
    own = tuple(map(tf.identity, flat.tensors))
    return tf.distribute.get_replica_context().merge_call(merged, args=own)


def settings(optimizer: BaseOptimizer, variables: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns all that Python decides in an update of an optimizer: the numbers that it was given.

    Returns:
      They, to be compared; None where code that is not Keras' takes part, which may do otherwise
      each time.
    """
    found: list[Any] = []
    for one in (optimizer, *wrapped(optimizer)):
        rate = getattr(one, "_learning_rate", None)
        if not _is_of_library(one) or (callable(rate) and not _is_of_library(rate)):
            return None
        found.append(id(rate))
        found += [
            (name, value)
            for name, value in vars(one).items()
            if isinstance(value, (bool, int, float, str, type(None)))
            and not name.startswith("_")
            and name != "built"
        ]
    constraints = [getattr(variable, "constraint", None) for variable in variables]
    if all(each is None or _is_of_library(each) for each in constraints):
        return tuple(found)
    return None


def _is_of_library(part: Any) -> bool:
    return type(part).__module__.split(".")[0] in ("keras", "tfdp")


class _Flat:
    """Gradients as flat tensors; rows, which replicas send at once, are whole."""

    def __init__(self, step: Step, grads: Sequence[Value | None]) -> None:
        rows = [index for index, each in enumerate(grads) if isinstance(each, tf.IndexedSlices)]
        sums = step.sum_without_gradient([grads[index] for index in rows])
        values = list(grads)
        for index, total in zip(rows, sums, strict=True):
            values[index] = total
        parts = list(map(_parts, values))
        self._kinds = list(map(len, parts))
        self.tensors = [tensor for each in parts for tensor in each]
        self._are_summands = [len(each) == 1 for each in parts for _ in each]
        self._specs = [tf.TensorSpec(each.shape, each.dtype) for each in self.tensors]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be alike for the same program."""
        return tuple(self._kinds), tuple(self._specs)

    def program(self, step: Step, run: Run) -> OfSummands:
        """Traces the optimizer's program."""

        def updated(tensors: Sequence[tf.Tensor]) -> Any:
            return run(self._given(iter(tensors)))

        return cutter_of(step.strategy).of_summands(updated, self._specs, self._are_summands)

    def _given(self, tensors: Iterator[tf.Tensor]) -> list[Value | None]:
        found: list[Value | None] = []
        for kind in self._kinds:
            parts = [next(tensors) for _ in range(kind)]
            found.append(tf.IndexedSlices(*parts) if kind > 1 else parts[0] if parts else None)
        return found


def _parts(value: Value | None) -> list[tf.Tensor]:
    """Returns the tensors of which a gradient consists: one, of rows two or three, or none."""
    if value is None:
        return []
    if isinstance(value, tf.IndexedSlices):
        return [
            each for each in (value.values, value.indices, value.dense_shape) if each is not None
        ]
    return [tf.convert_to_tensor(value)]
