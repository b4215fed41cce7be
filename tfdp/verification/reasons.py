"""The names and places of what differs first (layer, metric, optimizer), and the likely reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tfdp.keras_adapter._keras import flatten_layers, own_state
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.verification import readings, sources
from tfdp.verification.report import Difference

_LIMITS = "See docs/limits."

# For the beginnings of operations' names: what such an operation does, and why replicas differ.
_BY_OPERATION = (
    (
        ("PyFunc", "EagerPyFunc"),
        "it calls Python code",
        ", which runs once for each replica: what it counts, keeps or draws is not of the whole "
        "batch",
    ),
    (
        (
            *("Random", "Truncated", "Multinomial", "Parameterized", "Rng"),
            *("StatefulUniform", "StatefulStandard", "StatefulTruncated", "StatefulRandom"),
        ),
        "it draws from `tf.random`",
        ", where each replica draws for itself; `keras.random` with a `keras.random.SeedGenerator` "
        "draws for each example what one device draws",
    ),
    (
        ("StatelessRandom", "StatelessTruncated", "StatelessMultinomial", "StatelessShuffle"),
        "it draws random numbers",
        ", and each replica draws for itself what is not drawn for the examples of the batch along "
        "the first axis",
    ),
)


@dataclasses.dataclass(frozen=True)
class Traced:
    """The layer whose outputs differ first.

    Attributes:
      path: The layer's path.
      layer: The layer.
      operations: The operations of the layer's call.
    """

    path: str
    layer: Any
    operations: Sequence[sources.Operation]


def of_layer(found: Traced) -> tuple[str, str]:
    """Returns the layer's name and place, and why its outputs differ."""
    cause = f"layer {sources.at(found.path, found.layer)}"
    for kinds, what, advice in _BY_OPERATION:
        line = _first_line(op for op in found.operations if op.kind.startswith(kinds))
        if line is not None:
            return cause, f"{what}{line}{advice}. {_LIMITS}"
    line = _first_line(op for op in found.operations if op.over_examples) or ""
    return cause, (
        "what it gives for an example depends on the other examples of the batch, of which a "
        f"replica has its share alone, or on the replica: a mean, maximum or order over axis 0"
        f"{line}, or the number of the replica. {_LIMITS}"
    )


def _first_line(operations: Iterable[sources.Operation]) -> str | None:
    """Returns " (train.py:12)" for the first operation, "" if no line made it; None if none is."""
    for operation in operations:
        return f" ({operation.line})" if operation.line else ""
    return None


def of_part(first: Difference, model: keras.Model, replicas_differ: bool) -> tuple[str, str]:
    """Returns the name of what differs first, if no layer's outputs do, and the reason."""
    explain = {
        readings.LOSS: _of_loss,
        readings.STATE: _of_state,
        readings.GRADIENTS: _of_gradients,
        readings.OPTIMIZER: _of_optimizer,
        readings.WEIGHTS: _of_weights,
        readings.METRICS: _of_metrics,
    }[first.part]
    cause, reason = explain(first, model) if first.step else _of_start(first, model)
    if replicas_differ:
        reason += " The replicas hold different values from here on, which nothing mends."
    return cause, reason


def _of_start(first: Difference, model: keras.Model) -> tuple[str, str]:
    return f"{first.part} `{first.path}`", (
        "`build` makes another program under the strategy: does it ask for the number of replicas, "
        "as in `rate * strategy.num_replicas_in_sync`? The batch is the global one and needs no "
        "other rate."
    )


def _of_loss(first: Difference, model: keras.Model) -> tuple[str, str]:
    named = _own_losses(model)
    return f"{first.part} {' and '.join(named) or f'`{first.path}`'}", (
        "all layers agree and the loss does not. It is no mean over the examples of the batch: it "
        "couples them (in-batch negatives, a norm, a root of a mean), or depends on the replica. "
        "Return a value for each example, and give what is of the whole batch to "
        f"`tfdp.whole_batch` first. {_LIMITS}"
    )


def _of_state(first: Difference, model: keras.Model) -> tuple[str, str]:
    owner = _owner(first.path, model)
    return f"layer state `{first.path}`{_in(owner)}", (
        "a replica writes it from its own examples, and what is kept is replica 0's, or a mean "
        "weighted by examples. A maximum, a count or a sum over the batch is neither: declare what "
        "is added as `add_weight(aggregation='sum')`, or write what is of the whole batch. "
        f"{_LIMITS}"
    )


def _of_gradients(first: Difference, model: keras.Model) -> tuple[str, str]:
    cause = f"the gradient of `{first.path}` in {_own_step(model) or _optimizers(model)}"
    if math.isinf(first.size):
        return cause, (
            "one of the two does not update in this step, or its gradient is not finite. In half "
            "precision the sum of a whole batch may overflow where that of a share does not: "
            "begin with a smaller loss scale."
        )
    return cause, (
        "the loss agrees and the gradients do not: what happens to them between the loss and the "
        "update depends on the replica, or what is differentiated is no mean over the examples of "
        f"the batch (a sum, or a constant in its denominator). {_LIMITS}"
    )


def _of_optimizer(first: Difference, model: keras.Model) -> tuple[str, str]:
    return f"optimizer state `{first.path}` in {_optimizers(model)}", (
        "the gradients agree and what the optimizer keeps of them does not: it writes what depends "
        "on the replica, or draws random numbers."
    )


def _of_weights(first: Difference, model: keras.Model) -> tuple[str, str]:
    return f"weight `{first.path}` in {_optimizers(model)}", (
        "the gradients agree and the update does not: it depends on the replica, or draws random "
        "numbers."
    )


def _of_metrics(first: Difference, model: keras.Model) -> tuple[str, str]:
    named = {metric.name: metric for metric in _flat_metrics(model)}
    metric = named.get(first.path)
    what = "a number that the step returns" if metric is None else "its result"
    return f"metric {sources.at(first.path, metric) if metric else f'`{first.path}`'}", (
        f"weights agree and {what} does not. The variables of a metric are added up over "
        "replicas: it must add what belongs to its examples to them, not assign, nor count calls; "
        f"`add_variable(..., aggregation=...)` says otherwise. {_LIMITS}"
    )


def _own_losses(model: keras.Model) -> list[str]:
    """Returns the names and places of the losses and the step that the user wrote."""
    step = _own_step(model)
    flat = []
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        function = getattr(loss, "fn", loss)
        if loss is not None and sources.place(function):
            name = getattr(function, "__name__", type(function).__name__)
            flat.append(sources.at(name, function))
    return [*flat, *([step] if step else [])]


def _own_step(model: keras.Model) -> str:
    for name in ("train_step", "compute_loss"):
        method = getattr(type(model), name)
        if method is not getattr(keras.Model, name):
            return sources.at(f"{type(model).__name__}.{name}", method)
    return ""


def _optimizers(model: keras.Model) -> str:
    found = [o for outer in readings.optimizers(model) for o in innermost(outer)]
    return " and ".join(sources.at(type(o).__name__, o) for o in found)


def _owner(path: str, model: keras.Model) -> Any:
    for layer in flatten_layers(model):
        if any(variable.path == path for variable in own_state(layer)):
            return layer
    return None


def _in(owner: Any) -> str:
    where = "" if owner is None else sources.place(owner)
    return f" of {type(owner).__name__} ({where})" if where else ""


def _flat_metrics(model: keras.Model) -> list[Any]:
    found = list(model.metrics)
    compiled = getattr(model, "_compile_metrics", None)
    return found + (list(compiled.metrics) if compiled is not None else [])
