"""Optimizers: what one device does to the global batch's gradient, on every replica.

The order within a step: weigh by examples, accumulate locally, sum over replicas when the window
closes, unscale, decide whether all is finite, clip, decay, update, average. A replica's gradient is
summed where Keras would clip it, or on entry where nothing accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.errors import ScopeError
from tfdp.keras_adapter import fitting, recorded
from tfdp.keras_adapter._keras import BaseOptimizer, LossScaleOptimizer, TFOptimizer
from tfdp.keras_adapter.hooks import hook, wrap
from tfdp.keras_adapter.step import Phase, Step, current


@hook(TFOptimizer, "__init__")
def init(original: Callable[..., Any], self: TFOptimizer, *args: Any, **kwargs: Any) -> None:
    """Puts the hooks onto what a subclass overrides."""
    for cls in type(self).__mro__:
        for name, wrapper in _OVERRIDABLE.items():
            method = vars(cls).get(name)
            if method is not None and not getattr(method, "is_tfdp_hook", False):
                wrap(cls, name, wrapper)
    original(self, *args, **kwargs)
    fitting.note_rate(self, kwargs.get("learning_rate", args[0] if args else None))


def apply(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """`apply` in a replica: the outermost call weighs the gradients, and sums them if it can."""
    step = current()
    if step is None or step.updating:
        return original(self, grads, *args, **kwargs)
    return _outermost(step, self, list(grads), lambda grads: original(self, grads, *args, **kwargs))


def apply_gradients(
    original: Callable[..., Any],
    self: BaseOptimizer,
    grads_and_vars: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """`apply_gradients` in a replica, as `apply`."""
    step = current()
    if step is None or step.updating:
        return original(self, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    return _outermost(
        step,
        self,
        [grad for grad, _ in pairs],
        lambda grads: original(
            self, [(g, v) for g, (_, v) in zip(grads, pairs, strict=True)], *args, **kwargs
        ),
    )


def clip_gradients(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Runs once per closed window, before clipping: the sum over replicas is made here."""
    step = current()
    if step is None or not step.updating:
        return original(self, grads, *args, **kwargs)
    summed = step.phase is Phase.UPDATE
    grads = list(grads) if summed else _summed(step, list(grads))
    recorded.gradient_norm(grads)
    with step.during(Phase.UPDATE):
        return original(self, grads, *args, **kwargs)


_OVERRIDABLE = {
    "apply": apply,
    "apply_gradients": apply_gradients,
    "_clip_gradients": clip_gradients,
}


@hook(TFOptimizer, "_all_reduce_sum_gradients")
def all_reduce_sum_gradients(
    original: Callable[..., Any], self: TFOptimizer, grads_and_vars: Any
) -> Any:
    """Keras' own place for the sum comes after clipping: too late."""
    step = current()
    if step is None or not step.updating:
        return original(self, grads_and_vars)
    return list(grads_and_vars)


@hook(TFOptimizer, "_backend_update_step")
def backend_update_step(
    original: Callable[..., Any], self: TFOptimizer, *args: Any, **kwargs: Any
) -> Any:
    """Runs once per update, around those of all variables."""
    with recorded.trust_ratios(len(self._trainable_variables)):
        return original(self, *args, **kwargs)


@hook(LossScaleOptimizer, "check_finite")
def check_finite(original: Callable[..., Any], self: LossScaleOptimizer, grads: Any) -> Any:
    """All replicas take the same branch: gradients are summed, or each replica has a vote."""
    step = current()
    finite = original(self, grads)
    if step is None or step.phase is not Phase.LOCAL_UPDATE:
        return finite
    (against,) = step.sum_prepared([1.0 - tf.cast(finite, tf.float32)], None)
    return against < 0.5


@hook(TFOptimizer, "add_variable_from_reference")
def add_variable_from_reference(
    original: Callable[..., Any],
    self: TFOptimizer,
    reference_variable: Any,
    name: str | None = None,
    initializer: Any = "zeros",
) -> Any:
    """Accumulators hold one share per replica; what is read and saved is their sum."""
    extended = self._distribution_strategy.extended
    if name != "gradient_accumulator" or not getattr(extended, "is_tfdp", False):
        return original(self, reference_variable, name=name, initializer=initializer)
    with extended.summed_on_read():
        return original(self, reference_variable, name=name, initializer=initializer)


def _outermost(
    step: Step, optimizer: BaseOptimizer, grads: list[Any], run: Callable[[list[Any]], Any]
) -> Any:
    _check_scope(step, optimizer)
    if _accumulates(optimizer):
        with step.during(Phase.LOCAL_UPDATE):
            return run(_weighted(step, grads))
    with step.during(Phase.UPDATE):
        return run(_summed(step, grads, _weight(step)))


def _weight(step: Step) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """What makes a replica's gradients such that their sum over replicas is the global batch's.

    Keras' own `train_step` needs no factor: its losses have global denominators. In a user's, a raw
    mean is multiplied by the replica's fraction of the examples; and by the number of replicas
    where the step divides by it. In a custom loop, outside Keras' trainer, the user owns the
    scaling. An empty replica's gradient may be NaN and is left out.
    """
    share = step.share
    if share is None or step.num_replicas == 1:
        return None
    factor = share.applied if share.scaled_at_apply else None
    return lambda tensor: share.scaled(tensor, factor)


def _weighted(step: Step, grads: list[Any]) -> list[Any]:
    weight = _weight(step)
    if weight is None:
        return grads
    return [None if grad is None else map_values(weight, grad) for grad in grads]


def _summed(
    step: Step, grads: list[Any], weight: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> list[Any]:
    with recorded.watching_buckets() as watch:
        given = [grad for grad in grads if grad is not None]
        summed = iter(step.sum_prepared(given, weight, watch))
    return [None if grad is None else next(summed) for grad in grads]


def _accumulates(optimizer: BaseOptimizer) -> bool:
    return bool(optimizer.gradient_accumulation_steps) or any(map(_accumulates, _inner(optimizer)))


def _inner(optimizer: BaseOptimizer) -> list[BaseOptimizer]:
    """The optimizers that a MultiOptimizer or a LossScaleOptimizer wraps."""
    wrapped = getattr(optimizer, "inner_optimizer", None)
    return [*getattr(optimizer, "optimizers", []), *([] if wrapped is None else [wrapped])]


def _check_scope(step: Step, optimizer: BaseOptimizer) -> None:
    if optimizer._distribution_strategy is not step.strategy:
        raise ScopeError(
            f"An optimizer must be made in the scope of the strategy that it trains under, but "
            f"{optimizer.name!r} was made outside it. Move its construction, or the call of "
            "`compile` that names it, into `with strategy.scope():`."
        )
    for inner in _inner(optimizer):
        _check_scope(step, inner)
