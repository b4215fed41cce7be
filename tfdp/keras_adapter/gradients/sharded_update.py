"""The update of a sharded optimizer: each replica updates its part, and all get the parts.

`sharded_state` tells what each replica holds, and in which order a step goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.collectives.parts import part_of, rows_of_part
from tfdp.keras_adapter._keras import BaseOptimizer, key_of_variable, variables_of_optimizer
from tfdp.keras_adapter.gradients import sharded_state
from tfdp.keras_adapter.step import Step, at_least_float32
from tfdp.keras_adapter.training import step_recording
from tfdp.replicas import Value
from tfdp.sharding import Cut


def parts(
    step: Step, grads: Sequence[Value | None], cuts: Sequence[Cut | None], local: Sequence[int]
) -> list[Value | None]:
    """Returns what a replica goes on with in place of whole gradients.

    Args:
      step: The replica's step.
      grads: Gradients: sums over the replicas, or the replica's own terms.
      cuts: The cut of each one's variable; None: it stays whole.
      local: The positions of dense terms whose variables are cut. Other terms are summed already.
    """
    found = list(grads)
    with step_recording.watching_buckets() as watch:
        own = step.replicas.sum_parts(
            [tf.convert_to_tensor(grads[index]) for index in local],
            [_known(cuts[index]) for index in local],
            watch,
        )
    for index, part in zip(local, own, strict=True):
        found[index] = part
    for index, (value, cut) in enumerate(zip(grads, cuts, strict=True)):
        if cut is not None and value is not None and index not in local:
            found[index] = _own_part(step, value, cut)
    return found


def can_be_scattered(gradient: Value | None, cut: Cut | None) -> bool:
    """Returns whether the parts of a gradient's sum can be made without its whole."""
    return cut is not None and isinstance(gradient, tf.Tensor)


def clipped(
    step: Step, optimizer: BaseOptimizer, grads: Sequence[Value], cuts: Sequence[Cut | None]
) -> list[Value]:
    """Clips parts of gradients as an optimizer's options say, by norms of the wholes."""
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        bound = optimizer.clipvalue
        return [_mapped(lambda t: tf.clip_by_value(t, -bound, bound), grad) for grad in grads]
    each = optimizer.clipnorm if optimizer.clipnorm and optimizer.clipnorm > 0 else None
    together = optimizer.global_clipnorm
    if each is None and not (together and together > 0):
        return list(grads)
    squares = square_norms(step, grads, cuts)
    if each is not None:
        norms = [tf.sqrt(square) for square in squares]
        return [_mapped(_clip(each, norm), grad) for grad, norm in zip(grads, norms, strict=True)]
    norm = tf.sqrt(tf.add_n(squares))
    scale = together * tf.minimum(1.0 / norm, 1.0 / together)
    scale += norm - norm  # not finite, if the norm is not
    # Keras makes sparse gradients dense there: rows that occur twice are summed before the update.
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    return [grad * tf.cast(scale, grad.dtype) for grad in dense]


def square_norms(step: Step, grads: Sequence[Value], cuts: Sequence[Cut | None]) -> list[tf.Tensor]:
    """Returns the squared norm of each whole gradient: float32 scalars, or float64 if all are.

    Args:
      step: The replica's step.
      grads: Parts of gradients, or wholes where there is no cut.
      cuts: The cuts.
    """
    own = [_square(grad) for grad in grads]
    if any(square.dtype != tf.float64 for square in own):
        own = [tf.cast(square, tf.float32) for square in own]
    cut = [index for index, each in enumerate(cuts) if each is not None]
    if cut:
        (sums,) = step.sum_without_gradient([tf.stack([own[index] for index in cut])])
        for index, total in zip(cut, tf.unstack(sums, len(cut)), strict=True):
            own[index] = total
    return own


def update(
    step: Step,
    optimizer: BaseOptimizer,
    grads: Sequence[Value],
    variables: Sequence[Any],
    run: Callable[[list[Value], list[Any]], Any],
) -> None:
    """Updates each replica's parts, and writes the whole variables from all replicas' parts.

    Args:
      step: The replica's step.
      optimizer: A sharded optimizer.
      grads: Parts of gradients, or wholes where a variable is not cut.
      variables: The variables, whole.
      run: Updates variables by gradients, as the optimizer does it.
    """
    shards = sharded_state.shards_of(optimizer)
    assert shards is not None
    rank = _rank(step)
    given: list[Value] = []
    updated: list[Any] = []
    cut_up: list[tuple[Any, Cut, Any]] = []
    for grad, variable in zip(grads, variables, strict=True):
        held = variable.value if isinstance(variable, keras.Variable) else variable
        key = key_of_variable(optimizer, variable)
        cut, scratch = shards.cuts.get(key), shards.scratch.get(key)
        if cut is not None and scratch is not None:
            part = scratch.values[step.trace.index]
            sharded_state.fill(part, part_of(tf.convert_to_tensor(held), cut, rank))
            held, target = scratch, held
        else:
            target = held
        if cut is None or scratch is not None or cut.owner == rank:
            given.append(grad)
            updated.append(held)
        if cut is not None:
            cut_up.append((target, cut, scratch))
    if given:
        run(given, updated)
    _tell(step, shards, [key_of_variable(optimizer, v) for v in variables])
    updates = tf.convert_to_tensor(optimizer.iterations)
    own = []
    for target, cut, scratch in cut_up:
        if scratch is not None:
            own.append(sharded_state.emptied(scratch.values[step.trace.index], updates))
        else:
            own.append(part_of(tf.convert_to_tensor(target), cut, rank))
    write(step, [target for target, _, _ in cut_up], [cut for _, cut, _ in cut_up], own)


def _tell(step: Step, shards: sharded_state.Shards, keys: Sequence[str]) -> None:
    """Gives all replicas what one of them keeps for its variables, and cannot be cut."""
    told = [(shards.cuts[key].owner, slot) for key in keys for slot in shards.told.get(key, ())]
    if not told:
        return
    rank, values = _rank(step), []
    for owner, slot in told:
        value = tf.convert_to_tensor(slot.value)
        values.append(value if owner == rank else tf.zeros_like(value))
    # The others add zeros to what the owner has.
    sums = step.sum_without_gradient(values)
    with step.replicas.identical_writes():
        for (_, slot), total in zip(told, sums, strict=True):
            slot.assign(total)


def write(
    step: Step, variables: Sequence[Any], cuts: Sequence[Cut], own: Sequence[tf.Tensor]
) -> None:
    """Writes whole variables from the parts that each replica has of their new values."""
    wholes = step.replicas.gather_parts(own, cuts)
    with step.replicas.identical_writes():
        for variable, whole in zip(variables, wholes, strict=True):
            variable.assign(whole, read_value=False)


def own_values(step: Step, optimizer: BaseOptimizer, variables: Sequence[Any]) -> list[Any]:
    """Returns what a replica's parts of moving averages are made of: its parts of the variables."""
    shards = sharded_state.shards_of(optimizer)
    assert shards is not None
    found = []
    for variable in variables:
        cut = shards.averages.get(key_of_variable(optimizer, variable))
        whole = variable.value if isinstance(variable, keras.Variable) else variable
        found.append(variable if cut is None else _own_part(step, tf.convert_to_tensor(whole), cut))
    return found


def write_averages(
    step: Step | None, optimizer: BaseOptimizer, variables: Sequence[Any], averages: Sequence[Any]
) -> None:
    """Overwrites variables with moving averages, of which each replica holds a part.

    Args:
      step: The replica's step; None outside of replica functions, where all processes must call it.
      optimizer: A sharded optimizer.
      variables: The variables.
      averages: The moving averages of all variables that the optimizer was built for, or None
        where there is none.
    """
    shards = sharded_state.shards_of(optimizer)
    assert shards is not None
    cut_up = []
    keys = [key_of_variable(optimizer, each) for each in variables_of_optimizer(optimizer)]
    average_of = dict(zip(keys, averages, strict=True))
    for variable in variables:
        average = average_of.get(key_of_variable(optimizer, variable))
        if average is None:
            continue
        held = variable.value if isinstance(variable, keras.Variable) else variable
        cut = shards.averages.get(key_of_variable(optimizer, variable))
        if step is None or cut is None:
            held.assign(tf.convert_to_tensor(average.value))
        else:
            cut_up.append((held, cut, tf.convert_to_tensor(average.value)))
    if cut_up and step is not None:
        write(step, *map(list, zip(*cut_up, strict=True)))


def _rank(step: Step) -> int:
    """Returns the replica's number, as Python knows it while the replica's own trace is made."""
    processes = step.replicas.processes
    return processes.rank * processes.local_size + step.trace.index


def _own_part(step: Step, value: Value, cut: Cut) -> Value:
    rank = _rank(step)
    if isinstance(value, tf.IndexedSlices):
        return rows_of_part(value, cut, rank)
    return part_of(tf.convert_to_tensor(value), cut, rank)


def _known(cut: Cut | None) -> Cut:
    assert cut is not None
    return cut


def _square(grad: Value) -> tf.Tensor:
    values = grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)
    values = tf.cast(values, at_least_float32(values.dtype))
    return tf.reduce_sum(tf.square(values))


def _clip(bound: float, norm: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that clips to a norm as `tf.clip_by_norm` does."""

    def clip(values: tf.Tensor) -> tf.Tensor:
        return (
            values * tf.cast(bound, values.dtype) / tf.cast(tf.maximum(norm, bound), values.dtype)
        )

    return clip


def _mapped(fn: Callable[[tf.Tensor], tf.Tensor], grad: Value) -> Value:
    return map_values(
        fn, grad if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)
    )
