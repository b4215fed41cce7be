"""The hooks of Keras' optimizers: they clip, unscale, update and average as on one device.

The order of an update: sum over replicas, decide whether all is finite, unscale, clip, decay,
update, average. In `strategy.run` gradients are summed on entry, and so they are where a program
that is derived of one device's leaves updates to the replicas (`updates_apart`). An optimizer that
accumulates lets replicas vote whether all is finite, unscales and accumulates each replica's own,
and sums when its window closes, before it clips: unscaling and accumulating are linear and may come
before the sum, clipping is not. Gradients that a compression of updates sums go the same way, with
a window of one step: see `compressing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.compression import Compression
from tfdp.errors import ScopeError
from tfdp.hooks import cover, hook
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    LossScaleOptimizer,
    TFOptimizer,
    accumulators_of_optimizer,
    averages_of_optimizer,
    key_of_variable,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients import (
    compressing,
    rounds,
    sharded_state,
    sharded_update,
    update_sums,
    updates_apart,
)
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.keras_adapter.step import Phase, Step, current
from tfdp.keras_adapter.training import batch_and_rate, program_recording, step_recording
from tfdp.replicas import Value, exchange_of, replicas_of


@hook(TFOptimizer, "__init__")
def init(original: Callable[..., Any], self: TFOptimizer, *args: Any, **kwargs: Any) -> None:
    """Wraps an optimizer's class, if it was defined under a strategy, and notes the rate."""
    cover(type(self))
    original(self, *args, **kwargs)
    batch_and_rate.note_rate(self, kwargs.get("learning_rate", args[0] if args else None))


@hook(BaseOptimizer, "apply", overrides=True)
def apply(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Sums gradients that are not summed yet, in the outermost call, unless they accumulate."""
    step = current()
    if step is None and not updates_apart.are_made_here(self):
        with program_recording.updating() as is_outermost:
            if is_outermost and not any(o.gradient_accumulation_steps for o in innermost(self)):
                grads = program_recording.update(grads)
            return original(self, grads, *args, **kwargs)
    grads = list(grads)
    given = args[0] if args else kwargs.get("trainable_variables")
    variables = variables_of_optimizer(self) if given is None else list(given)
    if args:
        args = (variables, *args[1:])
    elif given is not None:
        kwargs = {**kwargs, "trainable_variables": variables}
    if step is not None and step.updating:
        _note_updated(step, grads, variables)
        return original(self, grads, *args, **kwargs)

    def run(grads: list[Value | None]) -> Any:
        return original(self, grads, *args, **kwargs)

    return _made(step, self, grads, variables, run)


@hook(BaseOptimizer, "apply_gradients", overrides=True)
def apply_gradients(
    original: Callable[..., Any],
    self: BaseOptimizer,
    grads_and_vars: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Sums gradients as `apply` does."""
    step = current()
    apart = step is None and updates_apart.are_made_here(self)
    if not apart and (step is None or step.updating):
        return original(self, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]

    def run(grads: list[Value | None]) -> Any:
        given = list(zip(grads, variables, strict=True))
        return original(self, given, *args, **kwargs)

    made = _made(step, self, grads, variables, run)
    return self.iterations if step is None else made


@hook(BaseOptimizer, "_clip_gradients", overrides=True)
def clip_gradients(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Sums accumulated gradients over replicas before clipping, once per closed window."""
    step = current()
    if step is None:
        if self.gradient_accumulation_steps:
            grads = program_recording.update(grads)
        step_recording.gradient_norm(grads)
    if step is None or not step.updating:
        return original(self, grads, *args, **kwargs)
    summed = step.phase is Phase.UPDATE
    if sharded_state.shards_of(self) is not None:
        return update_sums.clipped_parts(step, self, list(grads), summed)
    grads = list(grads) if summed else update_sums.summed_in_update(step, self, list(grads))
    step_recording.gradient_norm(grads)
    with step.during(Phase.UPDATE):
        return original(self, grads, *args, **kwargs)


@hook(TFOptimizer, "_all_reduce_sum_gradients")
def all_reduce_sum_gradients(
    original: Callable[..., Any], self: TFOptimizer, grads_and_vars: Any
) -> Any:
    """Leaves out Keras' own sum: it comes after clipping, which needs the whole batch's norm."""
    step = current()
    if step is None or not step.updating:
        return original(self, grads_and_vars)
    return list(grads_and_vars)


@hook(TFOptimizer, "_backend_update_step")
def backend_update_step(
    original: Callable[..., Any],
    self: TFOptimizer,
    grads: Any,
    variables: Any,
    learning_rate: Any,
) -> Any:
    """Updates each replica's parts of a sharded optimizer; records trust ratios."""
    step = current()
    if step is not None and sharded_state.shards_of(self) is not None:
        return sharded_update.update(
            step, self, grads, variables, lambda *given: original(self, *given, learning_rate)
        )
    with step_recording.trust_ratios(len(variables_of_optimizer(self))):
        return original(self, grads, variables, learning_rate)


@hook(LossScaleOptimizer, "check_finite")
def check_finite(original: Callable[..., Any], self: LossScaleOptimizer, grads: Any) -> Any:
    """Lets all replicas take the same branch: gradients are summed, or one replica's no decides."""
    step = current()
    finite = original(self, grads)
    shared = step is not None and step.replicas.exchange.shard is not None
    if step is None or not (step.phase is Phase.LOCAL_UPDATE or step.is_alone or shared):
        return finite
    (against,) = step.sum_without_gradient([1.0 - tf.cast(finite, tf.float32)])
    return against < 0.5


@hook(TFOptimizer, "add_variable_from_reference")
def add_variable_from_reference(
    original: Callable[..., Any],
    self: TFOptimizer,
    reference_variable: Any,
    name: str | None = None,
    initializer: Any = "zeros",
) -> Any:
    """Gives accumulators one share per replica; what is read and saved is their sum.

    Under a `synchronization` it is as any slot: see `rounds.building`.
    """
    strategy = strategy_of_optimizer(self)
    replicas = replicas_of(strategy)
    exchange = exchange_of(strategy)
    alone = exchange.synchronization is not None
    accumulates = _accumulates(self, name)
    # The windows of `shard="optimizer"` are summed when they close.
    is_window = accumulates and exchange.shard != "gradients"
    if not is_window or replicas is None or alone:
        with sharded_state.making(self, initializer):
            made = original(self, reference_variable, name=name, initializer=initializer)
        made = sharded_state.cut_slot(self, reference_variable, name, made)
        if accumulates and replicas is not None:
            made.value.accumulates = True
        return made
    with replicas.summed_on_read():
        return original(self, reference_variable, name=name, initializer=initializer)


def _accumulates(optimizer: BaseOptimizer, name: str | None) -> bool:
    """Returns whether Keras makes an accumulated gradient now: a user's slot may have the name."""
    making = hasattr(optimizer, accumulators_of_optimizer.name) and not optimizer.built
    return making and name == "gradient_accumulator"


@hook(BaseOptimizer, "_update_model_variables_moving_average")
def update_moving_averages(
    original: Callable[..., Any], self: BaseOptimizer, trainable_variables: Any
) -> Any:
    """Updates parts of moving averages by the replica's parts of the variables."""
    step = current()
    if step is not None and self.use_ema and sharded_state.shards_of(self) is not None:
        trainable_variables = sharded_update.own_values(step, self, trainable_variables)
    return original(self, trainable_variables)


@hook(TFOptimizer, "_overwrite_model_variables_with_average_value")
def overwrite_with_averages(
    original: Callable[..., Any], self: TFOptimizer, trainable_variables: Any
) -> Any:
    """Gathers moving averages of which each replica holds a part."""
    if sharded_state.shards_of(self) is None:
        return original(self, trainable_variables)
    return sharded_update.write_averages(
        current(), self, trainable_variables, averages_of_optimizer(self)
    )


def _made(
    step: Step | None,
    optimizer: BaseOptimizer,
    grads: list[Value | None],
    variables: Sequence[Any],
    run: Callable[[list[Value | None]], Any],
) -> Any:
    """Makes an update in a replica's step, or has each replica make it, apart from the program."""
    if step is not None:
        return _outermost(step, optimizer, grads, variables, run)

    def update(step: Step, grads: list[Value | None], local: list[bool]) -> Any:
        return _outermost(step, optimizer, grads, variables, run, local)

    return updates_apart.make(optimizer, grads, variables, update)


def _outermost(
    step: Step,
    optimizer: BaseOptimizer,
    grads: list[Value | None],
    variables: Sequence[Any],
    run: Callable[[list[Value | None]], Any],
    local: Sequence[bool] | None = None,
) -> Any:
    """Makes an update of a replica's own terms of gradients, or of what all have.

    Args:
      step: The replica's step.
      optimizer: The outermost optimizer.
      grads: What reaches it.
      variables: The variables that it updates.
      run: Calls it as it is.
      local: Of each of `grads` whether it is the replica's own term of a sum; None: all are.
    """
    _check_scope(step, optimizer)
    accumulates = any(o.gradient_accumulation_steps for o in innermost(optimizer))
    if accumulates:
        _check_range(step, optimizer)
        if not step.is_alone:
            compressing.check_accumulating(step, optimizer)
    is_local = [True] * len(grads) if local is None else local
    values = list(grads)
    step.to_compress = None
    if step.is_alone:
        return _updated_alone(step, optimizer, values, is_local, variables, run)
    mode = step.replicas.exchange.shard
    if mode == "gradients" or (mode is not None and not accumulates):
        values = update_sums.parts(step, optimizer, values, variables, is_local)
    elif not accumulates:
        own = [index for index, each in enumerate(is_local) if each]
        waits = update_sums.waiting(step, optimizer, variables, own, values)
        own = [index for index in own if index not in waits]
        step.to_compress = frozenset(
            key_of_variable(optimizer, variables[index]) for index in waits
        )
        sums = update_sums.summed(step, [values[index] for index in own])
        for index, total in zip(own, sums, strict=True):
            values[index] = total
    elif step.num_replicas > 1:
        # Accumulators are summed when the window closes. What is the same on all replicas must
        # count once in that sum, so the first replica alone accumulates it.
        values = [
            value if each else update_sums.of_first(step, value)
            for each, value in zip(is_local, values, strict=True)
        ]
    in_update = (accumulates and mode != "gradients") or step.to_compress
    with step.during(Phase.LOCAL_UPDATE if in_update else Phase.UPDATE):
        _note_updated(step, values, variables)
        return run(values)


def _updated_alone(
    step: Step,
    optimizer: BaseOptimizer,
    grads: Sequence[Value | None],
    local: Sequence[bool],
    variables: Sequence[Any],
    run: Callable[[list[Value | None]], Any],
) -> Any:
    values = [
        rounds.own(step, grad) if is_local else grad
        for grad, is_local in zip(grads, local, strict=True)
    ]
    update = rounds.Update(step, optimizer, variables)
    with step.during(Phase.UPDATE):
        _note_updated(step, values, variables)
        result = run(values)
    update.end()
    return result


def _note_updated(step: Step, grads: Sequence[Value | None], variables: Sequence[Any]) -> None:
    """Notes the variables of an update, as Keras goes on with them: those with a gradient."""
    step.updated = [
        variable
        for grad, variable in zip(grads, variables, strict=False)
        if grad is not None and not getattr(variable, "overwrite_with_gradient", False)
    ]


def _check_range(step: Step, optimizer: BaseOptimizer) -> None:
    """Raises unless accumulated gradients, which travel without the loss scale, keep their range.

    Raises:
      ValueError: Gradients that are scaled against underflow would be compressed without the scale.
    """
    compression = step.replicas.exchange.compression
    if not isinstance(compression, Compression):
        return
    scaled = isinstance(optimizer, LossScaleOptimizer) or optimizer.loss_scale_factor is not None
    if scaled and not compression.keeps_range and step.num_replicas > 1:
        raise ValueError(
            "Gradients that a loss scale protects must travel with it, but an optimizer with "
            "`gradient_accumulation_steps` sums them without it, once for each window, and "
            f"received compression={compression!r}, which holds no small and no large numbers. Use "
            'compression=tfdp.compression.Cast("bfloat16"), or no gradient_accumulation_steps.'
        )


def _check_scope(step: Step, optimizer: BaseOptimizer) -> None:
    if strategy_of_optimizer(optimizer) is not step.strategy:
        raise ScopeError(
            f"An optimizer must be made in the scope of the strategy that it trains under, but "
            f"{optimizer.name!r} was made outside it. Move its construction, or the call of "
            "`compile` that names it, into `with strategy.scope():`."
        )
    for inner in innermost(optimizer):
        if inner is not optimizer:
            _check_scope(step, inner)
