"""Updates in loops of the user's own: one program of one device's, run by all replicas.

In `strategy.run` the gradients that reach an optimizer are partial. What becomes of them follows
from the optimizer's program, as in a step of Keras': sums before they are clipped, one sum for a
window of accumulated gradients, shards of sums under `shard`. Outside of replicas gradients are
replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import OfPartials, Value, sharder_of
from tfdp.compression.exchange import exchange_of
from tfdp.keras._keras import BaseOptimizer, key_of_variable, strategy_of_optimizer
from tfdp.keras.nested_optimizers import wrapped
from tfdp.keras.optimizer import update_protocol
from tfdp.keras.replica_step import ReplicaStep

# What calls an optimizer, given gradients.
Run = Callable[[list[Value | None]], Any]

# The attribute of an optimizer with the programs that it has eagerly. Keras would track one that
# is set.
_PROGRAMS = "tfdp_update_programs"

# The subject of the warning that replicas wait.
_OUTSIDE = "updates outside of replicas"


class SummedUpdates:
    """The updates of one call of `strategy.run`: local replicas make the same ones, in order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, OfPartials]] = []
        self._next: dict[int, int] = {}

    def update(
        self,
        step: ReplicaStep,
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
        update_protocol.build(optimizer, variables)
        flat = _Flat(_with_whole_rows(step, grads))
        keys = [key_of_variable(optimizer, variable) for variable in variables]
        kind = (id(optimizer), tuple(keys), *flat.kind)
        if tf.executing_eagerly():
            return _eagerly(step, optimizer, variables, kind, flat, run)
        index = step.index
        place = self._next.setdefault(index, 0)
        self._next[index] += 1
        if place == len(self._made):
            self._made.append((kind, flat.program(step.strategy, run)))
        known, program = self._made[place]
        if known != kind:
            raise RuntimeError(
                f"Replicas must make the same updates in the same order, but update {place + 1} of "
                f"{optimizer.name!r} on replica {step.rank} has other gradients than on the first "
                "replica of its process. Let no update depend on the replica's number."
            )
        return program.on_replica(index, flat.tensors)


def of_one_replica(
    optimizer: BaseOptimizer, grads: Sequence[Value | None], variables: Sequence[Any], run: Run
) -> Any:
    """Makes an update outside of replicas: all write what one device does with these gradients.

    Args:
      optimizer: The outermost optimizer; it is built if it is not.
      grads: The gradients of a whole batch.
      variables: The variables that it updates.
      run: Calls the optimizer.

    Returns:
      What the optimizer returns.

    Raises:
      ValueError: The strategy has a synchronization that must be part of the step.
    """
    strategy: Any = strategy_of_optimizer(optimizer)
    synchronization = exchange_of(strategy).synchronization
    if synchronization is not None and synchronization.needs_step:
        raise ValueError(
            f"Under {synchronization} an update must be part of a step that replicas run, but "
            f"{optimizer.name!r} is called outside of one. Decorate the step, from the tape to the "
            "optimizer, with `@strategy.partitioned`."
        )
    update_protocol.build(optimizer, variables)
    if _OUTSIDE not in strategy.adapter_state.warned_about:
        strategy.adapter_state.warned_about.add(_OUTSIDE)
        if strategy.rank == 0 and strategy.extended.num_replicas > 1:
            logging.getLogger("tfdp").warning(
                "The loop that calls %r knows nothing of replicas: it trains as on one device, one "
                "replica computes the whole batch, and the others wait. For all to work, decorate "
                "the step, from the tape to the optimizer, with `@strategy.partitioned` in place "
                "of `@tf.function`.",
                optimizer.name,
            )
    flat = _Flat(grads, are_partials=False)
    keys = [key_of_variable(optimizer, variable) for variable in variables]
    kind = (_OUTSIDE, id(optimizer), tuple(keys), *flat.kind)

    def alone(own: list[Value | None]) -> Any:
        with update_protocol.of_one_replica():
            return run(own)

    return _kept(strategy, optimizer, variables, kind, flat, alone).on_one(flat.tensors)


def _eagerly(
    step: ReplicaStep,
    optimizer: BaseOptimizer,
    variables: Sequence[Any],
    kind: Any,
    flat: _Flat,
    run: Run,
) -> Any:
    """Makes an update by the gradients of all replicas."""

    def merged(strategy: tf.distribute.Strategy, *values: Any) -> Any:
        program = _kept(strategy, optimizer, variables, kind, flat, run)
        return program.on_all(list(map(strategy.experimental_local_results, values)))

    # Each replica copies its values: TensorFlow would take one tensor of all for a single value.
    own = tuple(map(tf.identity, flat.tensors))
    return tf.distribute.get_replica_context().merge_call(merged, args=own)


def _kept(
    strategy: tf.distribute.Strategy,
    optimizer: BaseOptimizer,
    variables: Sequence[Any],
    kind: Any,
    flat: _Flat,
    run: Run,
) -> OfPartials:
    """Returns a program that is kept, unless in a graph, or Python may do otherwise next time."""
    said = settings(optimizer, variables) if tf.executing_eagerly() else None
    if said is None:
        return flat.program(strategy, run)
    programs = vars(optimizer).setdefault(_PROGRAMS, {})
    if (kind, said) not in programs:
        programs[kind, said] = flat.program(strategy, run)
    found: OfPartials = programs[kind, said]
    return found


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


def _with_whole_rows(step: ReplicaStep, grads: Sequence[Value | None]) -> list[Value | None]:
    """Returns a replica's own gradients; rows, which replicas send at once, are summed."""
    rows = [index for index, each in enumerate(grads) if isinstance(each, tf.IndexedSlices)]
    sums = step.replicas.sum_without_gradient([grads[index] for index in rows])
    values = list(grads)
    for index, total in zip(rows, sums, strict=True):
        values[index] = total
    return values


class _Flat:
    """Gradients as flat tensors, of which rows are gathered, and others may be partial."""

    def __init__(self, grads: Sequence[Value | None], are_partials: bool = True) -> None:
        parts = list(map(_parts, grads))
        self._kinds = list(map(len, parts))
        self.tensors = [tensor for each in parts for tensor in each]
        self._are_partials = [are_partials and len(each) == 1 for each in parts for _ in each]
        self._specs = [tf.TensorSpec(each.shape, each.dtype) for each in self.tensors]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be alike for the same program."""
        return tuple(self._kinds), tuple(self._specs)

    def program(self, strategy: tf.distribute.Strategy, run: Run) -> OfPartials:
        """Traces the optimizer's program."""

        def updated(tensors: Sequence[tf.Tensor]) -> Any:
            return run(self._given(iter(tensors)))

        return sharder_of(strategy).of_partials(updated, self._specs, self._are_partials)

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
