"""What layers and collectives give: rows for rows, and the same on all replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.layouts import MARK_OF
from tfdp.keras_adapter.provenance import mark, mark_global, mark_of
from tfdp.keras_adapter.step import Step, current
from tfdp.keras_adapter.traced import Place, Walk
from tfdp.keras_adapter.weighing import layouts_of


def mark_outputs(step: Step, inputs: Any, outputs: Any) -> None:
    """Notes that a layer gives rows for rows, as Keras' `predict` takes it."""
    if step.share is None or step.num_replicas == 1:
        return
    layouts = layouts_of(step, Walk())
    rows, length = None, None
    for value in tf.nest.flatten(inputs):
        if isinstance(value, tf.Tensor) and value.shape.rank:
            layout = layouts.of(Place(value))
            if layout in MARK_OF:
                rows, length = layout, value.shape[0]
                break
    if rows is None:
        return
    for value in tf.nest.flatten(outputs):
        if not isinstance(value, tf.Tensor) or not value.shape.rank or mark_of(value) is not None:
            continue
        first = value.shape[0]
        fits = first is None
        if first is not None and length is not None:
            fits = first % max(length, 1) == 0
        if fits and not layouts.is_free(Place(value)):
            mark(value, MARK_OF[rows])


def _collective(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What replicas gather or sum is the same on all of them."""
    step = current()
    result = original(*args, **kwargs)
    if step is not None and step.share is not None:
        for value in tf.nest.flatten(result):
            mark_global(value)
    return result


for _name in ("all_gather", "all_reduce"):
    _owner = next(c for c in tf.distribute.ReplicaContext.__mro__ if _name in vars(c))
    hook(_owner, _name)(_collective)
