"""The variables of a model as arrays: weights, seeds, optimizer and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.replicas import ProcessGroup

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


def _others(model: Any, listed: Iterable[Iterable[Any]]) -> list[Any]:
    """Returns the variables that the model or a part of it has as an attribute, unless listed."""
    known = {id(_value(variable)) for variables in listed for variable in variables}
    found = []
    for owner in parts(model):
        for leaf in _leaves(list(vars(owner).values())):
            if isinstance(leaf, tf.random.Generator):
                leaf = leaf.state
            if isinstance(leaf, (keras.Variable, tf.Variable)) and id(_value(leaf)) not in known:
                known.add(id(_value(leaf)))
                found.append(leaf)
    return found


def parts(model: Any) -> list[Any]:
    """Returns the model, and all objects in it that may have variables, from outside inwards."""
    owners, seen = [model], {id(model)}
    for owner in owners:  # grows
        for leaf in _leaves(list(vars(owner).values())):
            if isinstance(leaf, _OWNERS) and id(leaf) not in seen:
                seen.add(id(leaf))
                owners.append(leaf)
    return owners


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _value(variable: Any) -> Any:
    """Returns TensorFlow's variable behind one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def of_replicas(model: Any) -> list[str]:
    """Returns the names of the variables of which each replica has a value of its own.

    Such are metrics and accumulated gradients, of which each replica has its share, and under a
    `synchronization` weights and slots.
    """
    return [name for name, variable in named(model).items() if _differs(_value(variable))]


def arrays(model: Any, cut: bool = True) -> dict[str, np.ndarray]:
    """Returns copies of a model's variables.

    Those `of_replicas` have one row for each replica of this process. All processes must call it:
    they gather, one after the other, those of which each replica holds a part.

    Args:
      model: The model.
      cut: Whether these are returned, too.
    """
    found = {}
    for name, variable in named(model).items():
        value = _value(variable)
        if _differs(value):
            found[name] = np.stack([_copy(own) for own in value.values])
            continue
        copy = _copy(value)
        if cut or not _is_cut(value):
            found[name] = copy
    return found


def gathered(
    processes: ProcessGroup, model: Any, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns those of the arrays that are `of_replicas`, with the rows of all processes.

    Args:
      processes: The processes, which all must call this.
      model: The model.
      arrays: What `arrays` returned for the model.
    """
    own = {name: arrays[name] for name in of_replicas(model)}
    if not own:
        return {}
    payload = b"".join(array.tobytes() for array in own.values())
    posts = processes.all_gather("the values of each replica", payload=payload)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in own}
    for post in posts:
        at = 0
        for name, array in own.items():
            part = post.payload[at : at + array.nbytes]
            rows[name].append(np.frombuffer(part, array.dtype).reshape(array.shape))
            at += array.nbytes
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def difference(model: Any, saved: Mapping[str, np.ndarray]) -> str | None:
    """Returns how the variables of a model differ from the saved ones in number, shape or dtype.

    Returns:
      The first difference in words; None if the saved ones fit.
    """
    own = named(model)
    for name, variable in own.items():
        value = _value(variable)
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
        value = _value(variable)
        by_each = _differs(value) or _is_cut(value)
        shape = saved[name].shape[by_each and saved[name].ndim > len(value.shape) :]
        here = f"{value.dtype.name}{list(value.shape)}"
        there = f"{saved[name].dtype.name}{list(shape)}"
        if here != there:
            return f"{getattr(variable, 'path', value.name)!r} is {here}, and there {there}"
    return None


def assign(
    model: Any, saved: Mapping[str, np.ndarray], metrics: bool, first_replica: int, replicas: int
) -> None:
    """Assigns saved values to the model's metrics, or to all of its other variables.

    Args:
      model: The model.
      saved: The values by name. Those `of_replicas` have a row for each replica of that time.
      metrics: Whether metrics are meant.
      first_replica: The number of this process' first replica.
      replicas: The number of replicas. If there were others, each gets its part of what the values
        read as together.
    """
    for name, variable in named(model).items():
        if name.startswith("metric") != metrics:
            continue
        value = _value(variable)
        has_rows = saved[name].ndim > len(value.shape)
        if not _differs(value) or not has_rows:
            # Accumulated gradients may have been kept as shares, or as one sum.
            value.assign(saved[name].sum(0) if _is_cut(value) and has_rows else saved[name])
        elif len(saved[name]) == replicas:
            own = saved[name][first_replica:]
            for part, row in zip(value.values, own, strict=False):
                part.assign(row)
        else:
            value.assign(_read(value, saved[name]))


def _copy(value: tf.Variable) -> np.ndarray:
    return np.array(tf.convert_to_tensor(value))


def _differs(value: Any) -> bool:
    if not isinstance(value, tf.distribute.DistributedValues):
        return False
    return value.synchronization == tf.VariableSynchronization.ON_READ or _is_apart(value)


def _is_cut(value: Any) -> bool:
    """Returns whether each replica holds a part of a value, which reads as the whole."""
    return hasattr(value, "cut")


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
