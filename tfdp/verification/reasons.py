"""The names and places of what differs first (layer, metric, optimizer), and the likely reason."""

import math
from typing import Any

import keras

from tfdp.keras import batch_normalization
from tfdp.keras._keras import flatten_layers, own_state
from tfdp.keras.nested_optimizers import innermost
from tfdp.verification import readings, source_lines
from tfdp.verification.verification_report import Difference

# A step is traced as on one device, so that nothing in it can tell how many replicas there are.
_READ = (
    "Does the program read a number of replicas or devices in `build`, a constructor or a closure? "
    "A step is traced as on one device, with the whole batch, and needs none."
)
_ELSE = (
    " Else an operation gives other numbers on another device, or tfdp is at fault: please report "
    "it."
)

_SAID = {
    readings.LOSS: "all layers agree and the loss does not",
    readings.STATE: "the loss agrees and what the layer keeps does not",
    readings.GRADIENTS: "the loss agrees and the gradients do not",
    readings.OPTIMIZER: "the gradients agree and what the optimizer keeps of them does not",
    readings.WEIGHTS: "the gradients agree and the update does not",
    readings.METRICS: "the weights agree and the metric does not",
}

_OF_UPDATES = ("compression", "synchronization")
_BY_DESIGN = {
    "batch_normalization": "has plain layers normalize each replica's examples by themselves",
    "compression": "rounds gradients on their way, or sends less of them",
    "synchronization": "applies gradients late, or lets replicas train by themselves for a while",
}


def by_design(first: Difference, strategy: Any, model: keras.Model) -> str:
    """Returns which of the strategy's arguments is meant to change what differs first; "": none."""
    asked = []
    normalizes = any(map(batch_normalization.is_plain, flatten_layers(model)))
    if first.step and normalizes and strategy.batch_normalization == "per_replica":
        asked.append("batch_normalization")
    of_update = (readings.GRADIENTS, readings.OPTIMIZER, readings.WEIGHTS)
    if first.step > 1 or (first.step == 1 and first.part in of_update):
        asked += [name for name in _OF_UPDATES if getattr(strategy, name) is not None]
    for name in asked[:1]:
        return (
            f"by design. The strategy's `{name}={getattr(strategy, name)!r}` {_BY_DESIGN[name]}. "
            "Without it `verify` tells whether there is anything else."
        )
    return ""


def of_layer(path: str, layer: Any, line: str) -> tuple[str, str]:
    """Returns the name and place of a layer whose outputs differ first, and the reason.

    Args:
      path: The layer's path.
      layer: The layer.
      line: The first line of its call that makes other operations than on one device; "" if none.
    """
    cause = f"layer {source_lines.at(path, layer)}"
    if line:
        return cause, f"what {line} computes is not what it does on one device. {_READ}"
    return cause, f"all layers before it agree and its outputs do not. {_READ}{_ELSE}"


def of_part(first: Difference, model: keras.Model) -> tuple[str, str]:
    """Returns the name of what differs first, if no layer's outputs do, and the reason."""
    name = f"{first.part} `{first.path}`"
    if not first.step:
        return name, f"`build` makes another program under the strategy. {_READ}"
    if first.part == readings.LOSS:
        name = f"{first.part} {' and '.join(_own_losses(model)) or f'`{first.path}`'}"
    elif first.part == readings.STATE:
        name += _in(_owner(first.path, model))
    elif first.part == readings.GRADIENTS:
        step = _own_step(model) or _optimizers(model)
        name = f"the gradient of `{first.path}` in {step}"
    elif first.part == readings.METRICS:
        metric = {each.name: each for each in _flat_metrics(model)}.get(first.path)
        name = f"metric {source_lines.at(first.path, metric)}"
    else:
        name += f" in {_optimizers(model)}"
    if first.part == readings.GRADIENTS and math.isinf(first.size):
        return name, (
            "one of the two does not update in this step, or its gradient is not finite. In half "
            f"precision begin with a smaller loss scale. {_READ}{_ELSE}"
        )
    return name, f"{_SAID[first.part]}. {_READ}{_ELSE}"


def of_compiled(first: Difference) -> str:
    """Returns the reason where XLA compiles a step, within which nothing is read; "": in none."""
    if not first.step:
        return ""
    return (
        "XLA compiles the step, in which neither layers nor gradients can be read: what stands "
        "here is the first of what can. `tfdp.verify` under a `tfdp.DataParallelStrategy` names "
        f"the layer. {_READ}{_ELSE}"
    )


def _own_losses(model: keras.Model) -> list[str]:
    """Returns the names and places of the losses and the step that the user wrote."""
    step = _own_step(model)
    flat = []
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        function = getattr(loss, "fn", loss)
        if loss is not None and source_lines.place(function):
            name = getattr(function, "__name__", type(function).__name__)
            flat.append(source_lines.at(name, function))
    return [*flat, *([step] if step else [])]


def _own_step(model: keras.Model) -> str:
    for name in ("train_step", "compute_loss"):
        method = getattr(type(model), name)
        if method is not getattr(keras.Model, name):
            return source_lines.at(f"{type(model).__name__}.{name}", method)
    return ""


def _optimizers(model: keras.Model) -> str:
    found = [o for outer in readings.optimizers(model) for o in innermost(outer)]
    return " and ".join(source_lines.at(type(o).__name__, o) for o in found)


def _owner(path: str, model: keras.Model) -> Any:
    for layer in flatten_layers(model):
        if any(variable.path == path for variable in own_state(layer)):
            return layer
    return None


def _in(owner: Any) -> str:
    where = "" if owner is None else source_lines.place(owner)
    return f" of {type(owner).__name__} ({where})" if where else ""


def _flat_metrics(model: keras.Model) -> list[Any]:
    found = list(model.metrics)
    compiled = getattr(model, "_compile_metrics", None)
    return found + (list(compiled.metrics) if compiled is not None else [])
