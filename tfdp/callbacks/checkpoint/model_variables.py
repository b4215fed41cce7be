"""The variables of a model as arrays: weights, seeds, optimizer and metrics."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.callbacks.checkpoint import archive
from tfdp.communication.replicas import ProcessGroup, sharding_of

_KINDS = ("weight", "optimizer", "metric", "other")
_OWNERS = (
    keras.Layer,
    keras.constraints.Constraint,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.random.SeedGenerator,
    keras.regularizers.Regularizer,
    tf.Module,
)


def named(model: Any) -> dict[str, Any]:
    """Returns the variables of a model by names that another process gives them, too.

    The names count the variables of a kind: Keras' own paths hold numbers that depend on what else
    a process has made. The kind "other" is what Keras does not list, and what the model, an object
    of Keras in it, or a `tf.Module`, has as an attribute, by itself or in a list, tuple or dict:
    Nadam's product of momenta, the state of a `tf.random.Generator`, variables of a user's own.

    >>> import keras
    >>> list(named(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])))
    ['weight-0', 'weight-1']
    """
    optimizer = getattr(model, "optimizer", None)
    listed = (model.variables, getattr(optimizer, "variables", []), model.metrics_variables)
    lists = (*listed, _others(model, listed))
    return {
        f"{kind}-{number}": variable
        for kind, variables in zip(_KINDS, lists, strict=True)
        for number, variable in enumerate(variables)
    }


def mirrored(model: Any) -> dict[str, tf.Variable]:
    """Returns TensorFlow's variables of a model that replicas must keep equal, by name.

    The states of a `tf.random.Generator` count what each replica has drawn by itself.
    """
    attributes = (leaf for owner in parts(model) for leaf in _attributes(owner))
    drawing = {id(leaf.state) for leaf in attributes if isinstance(leaf, tf.random.Generator)}
    values = {name: tensorflows(variable) for name, variable in named(model).items()}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, tf.distribute.DistributedValues)
        and not (_differs(value) or sharding_of(value) or id(value) in drawing)
    }


def _others(model: Any, listed: Iterable[Iterable[Any]]) -> list[Any]:
    """Returns the variables that the model or a part of it has as an attribute, unless listed."""
    known = {id(tensorflows(variable)) for variables in listed for variable in variables}
    found = []
    for owner in parts(model):
        for leaf in _attributes(owner):
            if isinstance(leaf, tf.random.Generator):
                leaf = leaf.state
            if (
                isinstance(leaf, (keras.Variable, tf.Variable))
                and id(tensorflows(leaf)) not in known
            ):
                known.add(id(tensorflows(leaf)))
                found.append(leaf)
    return found


def parts(model: Any) -> list[Any]:
    """Returns the model, and all objects in it that may have variables, from outside inwards."""
    owners, seen = [model], {id(model)}
    for owner in owners:  # grows
        for leaf in _attributes(owner):
            if isinstance(leaf, _OWNERS) and id(leaf) not in seen:
                seen.add(id(leaf))
                owners.append(leaf)
    return owners


def _attributes(owner: Any) -> Iterator[Any]:
    return _leaves(list(vars(owner).values()))


def _leaves(value: Any, within: tuple[int, ...] = ()) -> Iterator[Any]:
    if not isinstance(value, (list, tuple, dict)):
        yield value
    elif id(value) not in within:  # a list may be in itself
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part, (*within, id(value)))


def tensorflows(variable: Any) -> Any:
    """Returns TensorFlow's variable behind one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable


@dataclasses.dataclass(frozen=True)
class Kept:
    """A copy of what this process holds of a variable.

    Attributes:
      own: The whole variable, or this process' part of what is kept of it.
      sharding: The sharding into the processes' parts; None: each process holds the whole.
    """

    own: np.ndarray
    sharding: Sharding | None


def copies(model: Any, processes: ProcessGroup) -> dict[str, Kept]:
    """Returns by name a copy of what this process holds of a model's variables.

    Of a variable that replicas hold parts of, it is the parts of this process' replicas. Of one of
    which each replica has a value of its own, it is a row for each of them: such are metrics and
    accumulated gradients, and under a `synchronization` weights and slots. Of all others rank 0
    copies the whole, and the other ranks nothing.

    Args:
      model: The model.
      processes: Its processes; nothing is sent between them.
    """
    found = {}
    each, number = processes.local_size, processes.world_size
    for name, variable in named(model).items():
        value = tensorflows(variable)
        if _differs(value):
            own = np.stack([_copy(part) for part in value.values])
            shape = (each * number, *own.shape[1:])
            found[name] = Kept(own, Sharding(shape, 0, tuple(range(0, each * number + 1, each))))
        elif sharding := sharding_of(value):
            own = np.concatenate([_copy(part) for part in value.values], sharding.axis)
            found[name] = Kept(
                own, Sharding(sharding.shape, sharding.axis, sharding.bounds[::each])
            )
        elif processes.rank == 0:
            found[name] = Kept(_copy(value), None)
    return found


def wholes(
    processes: ProcessGroup, key: str, kept: dict[str, Kept]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and values of whole variables on rank 0; elsewhere sends parts, yields nothing.

    Rank 0 gets the parts of one variable after the other, so that it needs the memory of two
    copies of the largest one. All processes must iterate, in whatever thread.

    Args:
      processes: The processes.
      key: What is sent, the same on all ranks, and no other's.
      kept: What `copies` returned; each is let go when it is sent, or has been yielded.
    """
    for name in list(kept):
        own, sharding = kept[name].own, kept.pop(name).sharding
        if sharding is not None and processes.world_size > 1:
            parts = processes.bring_to_first(f"{name} of {key}", bytes(archive.content_of(own)))
            if processes.rank != 0:
                continue
            own = _joined(parts, sharding, own.dtype)
        yield name, own


def _joined(parts: Sequence[bytes], sharding: Sharding, dtype: np.dtype) -> np.ndarray:
    whole = np.empty(sharding.shape, dtype)
    for rank, part in enumerate(parts):
        about = {"dtype": dtype, "shape": sharding.part_shape(rank)}
        whole[sharding.index(rank)] = archive.array_of(part, about)
    return whole


def difference(model: Any, saved: Mapping[str, np.ndarray]) -> str | None:
    """Returns how the variables of a model differ from the saved ones in number, shape or dtype.

    Returns:
      The first difference in words; None if the saved ones fit.
    """
    own = named(model)
    for name, variable in own.items():
        value = tensorflows(variable)
        if not name.startswith("weight") or name not in saved:
            continue
        how = [
            "for each replica, as under a `synchronization`" if by_each else "once"
            for by_each in (saved[name].ndim > len(value.shape), _is_apart(value))
        ]
        if how[0] != how[1]:
            return f"{variable.path!r} is kept {how[0]} there, and {how[1]} here"
    for kind in _KINDS:
        number, kept = (sum(name.startswith(kind) for name in names) for names in (own, saved))
        if number != kept:
            return f"it has {kept} variables of the kind {kind!r}, and the model has {number}"
    for name, variable in own.items():
        value = tensorflows(variable)
        by_each = _differs(value) or _accumulates(value)
        shape = saved[name].shape[by_each and saved[name].ndim > len(value.shape) :]
        here = f"{value.dtype.name}{list(value.shape)}"
        there = f"{tf.as_dtype(saved[name].dtype).name}{list(shape)}"
        if here != there:
            return f"{getattr(variable, 'path', value.name)!r} is {here}, and there {there}"
    return None


def assign(
    model: Any, saved: Mapping[str, np.ndarray], metrics: bool, first_replica: int, replicas: int
) -> None:
    """Assigns saved values to the model's metrics, or to all of its other variables.

    Args:
      model: The model.
      saved: The values by name, of which each is asked for once, in the order of `named`. Those of
        which each replica had one have a row for each replica of that time.
      metrics: Whether metrics are meant.
      first_replica: The number of this process' first replica.
      replicas: The number of replicas. If there were others, what the values read as together is
        assigned.
    """
    for name, variable in named(model).items():
        if name.startswith("metric") != metrics:
            continue
        value, found = tensorflows(variable), saved[name]
        has_rows = found.ndim > len(value.shape)
        if not _differs(value) or not has_rows:
            value.assign(found.sum(0) if has_rows else found)
        elif len(found) == replicas:
            for part, row in zip(value.values, found[first_replica:], strict=False):
                part.assign(row)
        else:
            value.assign(_read(value, found))


def _copy(value: tf.Variable) -> np.ndarray:
    tensor = tf.convert_to_tensor(value)
    return np.array(tensor.numpy(), tensor.dtype.as_numpy_dtype)  # one text is no array


def _differs(value: Any) -> bool:
    if not isinstance(value, tf.distribute.DistributedValues):
        return False
    return value.synchronization == tf.VariableSynchronization.ON_READ or _is_apart(value)


def _accumulates(value: Any) -> bool:
    """Returns whether replicas hold the sum of what others may have kept shares of.

    Such are gradients that `shard` accumulates: sharded, or whole where they cannot be.
    """
    return bool(getattr(value, "accumulates", False))


def _is_apart(value: Any) -> bool:
    """Returns whether replicas update a weight each by itself, and so may have other values."""
    return bool(getattr(value, "apart", ()))


def _read(value: tf.Variable, rows: np.ndarray) -> np.ndarray:
    """Returns what a variable reads as whose replicas hold `rows`."""
    if value.aggregation == tf.VariableAggregation.SUM:
        return rows.sum(0, rows.dtype)
    if value.aggregation == tf.VariableAggregation.MEAN or _is_apart(value):
        return rows.mean(0, dtype=rows.dtype)
    return rows[0]
