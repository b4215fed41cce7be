"""The hooks of Keras' optimizers: an update is a part of the program that one device would run.

In a step of Keras' and in a partitioned function the whole program is one device's. In
`strategy.run`, where replicas have losses of their own, the update by the sums of their gradients
is such a program, and so is an update outside of replicas: see `run_updates`. What becomes of
gradients in each is said by an `Updating`: the plain one sums them whole where the program needs
it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import cover, hook
from tfdp.communication.replicas import HasReplicas, Value, one_device, replicas_of
from tfdp.compression import Compression, UpdateCompression
from tfdp.compression.exchange import ExchangeOptions, exchange_of
from tfdp.keras import learning_rate_check, scope_errors, step_recording
from tfdp.keras._keras import (
    BaseOptimizer,
    LossScaleOptimizer,
    TFOptimizer,
    accumulators_of_optimizer,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras.nested_optimizers import is_outer, optimizers_of
from tfdp.keras.optimizer import run_updates, update_protocol
from tfdp.keras.optimizer.asynchronous_updates import AsynchronousUpdates
from tfdp.keras.optimizer.backup_updates import BackupUpdates
from tfdp.keras.optimizer.compressed_shards import CompressedParts
from tfdp.keras.optimizer.compressed_updates import Compressed, CompressedUpdates
from tfdp.keras.optimizer.delayed_updates import DelayedUpdates
from tfdp.keras.optimizer.local_sgd_rounds import LocalSGDRounds
from tfdp.keras.optimizer.sharded_updates import ShardedUpdates
from tfdp.keras.optimizer.update_protocol import Updating
from tfdp.keras.replica_step import ReplicaStep, current
from tfdp.synchronization import Asynchronous, Delayed
from tfdp.synchronization.weight_averaging import WeightAveraging


def updating_of(optimizer: BaseOptimizer) -> Updating:
    """Returns what becomes of the gradients that reach an optimizer, and of what it keeps."""
    exchange = exchange_of(strategy_of_optimizer(optimizer))
    if update_protocol.traced_update().is_of_one_replica:  # nothing is sent
        exchange = ExchangeOptions(None, None, exchange.shard)
    if is_outer(optimizer):
        return Updating()
    if exchange.shard is not None:
        of_windows = exchange.shard != "optimizer"
        if isinstance(exchange.compression, UpdateCompression):
            return CompressedParts(of_windows, exchange.compression)
        return ShardedUpdates(of_windows, exchange.cast)
    if isinstance(exchange.synchronization, Asynchronous):
        return AsynchronousUpdates(exchange.synchronization.every)
    if isinstance(exchange.synchronization, Delayed):
        return DelayedUpdates(exchange.synchronization.steps)
    if not exchange.replicas_wait:
        return BackupUpdates()
    if isinstance(exchange.synchronization, WeightAveraging):
        return LocalSGDRounds(exchange.synchronization)
    if isinstance(exchange.compression, UpdateCompression):
        return CompressedUpdates(exchange.compression)
    if isinstance(exchange.compression, Compression):
        return Compressed(exchange.compression)
    return Updating()


def begin(strategy: Any, model: Any) -> None:
    """Begins a `fit`, for the updates of a model's optimizers; all processes must call it."""
    for one in optimizers_of(model):
        updating_of(one).begin(strategy, one, model.non_trainable_weights)


def end_rounds(strategy: Any, owner: Any, with_epoch: bool = False) -> None:
    """Ends what the updates of optimizers have left open; all processes must call it.

    Args:
      strategy: The strategy.
      owner: An optimizer, or a model, for its optimizers and the state of its layers.
      with_epoch: Whether it is the end of an epoch of `fit`, at which some stays open.
    """
    for one in optimizers_of(owner):
        updating = updating_of(one)
        if not with_epoch or updating.ends_with_epochs:
            updating.end(strategy, one)
            updating.end_state(strategy, getattr(owner, "non_trainable_variables", ()))


def tell_updates(strategy: Any, model: Any) -> None:
    """Says what is to be said of a model's updates at the end of `fit`; all processes call it."""
    for one in optimizers_of(model):
        updating_of(one).tell(strategy)


@hook(TFOptimizer, "__init__")
def init(original: Callable[..., Any], self: TFOptimizer, *args: Any, **kwargs: Any) -> None:
    """Wraps an optimizer's class, if it was defined under a strategy, and notes the rate."""
    cover(type(self))
    original(self, *args, **kwargs)
    learning_rate_check.note_rate(self, kwargs.get("learning_rate", args[0] if args else None))


@hook(BaseOptimizer, "build", overrides=True)
def build(
    original: Callable[..., Any], self: BaseOptimizer, variables: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes what the strategy's replicas keep for each variable, in the optimizer's scope.

    Raises:
      ScopeError: A variable has no copy on each replica, and replicas that wrote it would wait for
        each other for ever; or the optimizer has none of what it keeps.
      ValueError: An optimizer does not go with what the strategy's replicas exchange.
    """
    variables, strategy = list(variables), strategy_of_optimizer(self)
    extended = getattr(strategy, "extended", None)
    scope_errors.check_optimizers_scope(self, variables)
    if isinstance(extended, HasReplicas):
        scope_errors.check_variables("The model", variables, strategy)
        in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        is_in_scope = tf.distribute.get_strategy() is strategy
        if not is_in_scope or not (in_replica or tf.executing_eagerly()):
            with extended.in_scope():
                return self.build(variables, *args, **kwargs)
    with updating_of(self).building(self, variables):
        return original(self, variables, *args, **kwargs)


@hook(TFOptimizer, "add_variable_from_reference")
def add_variable_from_reference(
    original: Callable[..., Any],
    self: TFOptimizer,
    reference_variable: Any,
    name: str | None = None,
    initializer: Any = "zeros",
) -> Any:
    """Makes what is kept for a variable: partial accumulated gradients, shards, or copies."""
    # Keras makes accumulated gradients before the optimizer is built; a slot may have their name.
    making = hasattr(self, accumulators_of_optimizer.name) and not self.built
    accumulates, own = making and name == "gradient_accumulator", updating_of(self)
    with own.making(self, initializer, accumulates):
        made = original(self, reference_variable, name=name, initializer=initializer)
    own.made(self, reference_variable, made, accumulates)
    return made


@hook(BaseOptimizer, "apply")
def accumulate(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Gives an optimizer what it accumulates, after all methods that override `apply`."""
    if not one_device.is_traced() or is_outer(self):
        return original(self, grads, *args, **kwargs)
    given = args[0] if args else kwargs.get("trainable_variables")
    variables = variables_of_optimizer(self) if given is None else given

    def run(own: list[Value | None]) -> Any:
        return original(self, own, *args, **kwargs)

    return updating_of(self).applying(self, list(grads), list(variables), run)


@hook(BaseOptimizer, "apply", overrides=True)
def apply(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes an update in the program of one device, or by the sums of replicas' gradients."""
    step = current()
    strategy = strategy_of_optimizer(self)
    is_alone = step is None and replicas_of(strategy) is not None
    is_outside = not (is_alone or one_device.is_traced()) and (step is None or step.updating)
    if is_outside or is_outer(self):
        return original(self, grads, *args, **kwargs)
    grads = list(grads)
    given = args[0] if args else kwargs.get("trainable_variables")
    variables = list(variables_of_optimizer(self)) if given is None else list(given)
    if args:
        args = (variables, *args[1:])
    elif given is not None:
        kwargs = {**kwargs, "trainable_variables": variables}

    def run(own: list[Value | None]) -> Any:
        return self.apply(own, *args, **kwargs)

    if is_alone:
        scope_errors.check_optimizer(self, strategy)
        return run_updates.of_one_replica(self, grads, variables, run)
    if step is not None:
        return _of_replicas(step, self, grads, variables, run)
    update_protocol.build(self, variables)
    with update_protocol.updated(self, grads, variables) as is_outermost:
        if not is_outermost:
            return original(self, grads, *args, **kwargs)
        own = updating_of(self)
        with own.reaching(self, grads, variables) as given:
            given = given if update_protocol.accumulates(self) else own.recorded(given)
            return original(self, given, *args, **kwargs)


@hook(BaseOptimizer, "apply_gradients", overrides=True)
def apply_gradients(
    original: Callable[..., Any],
    self: BaseOptimizer,
    grads_and_vars: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Makes an update by the sums of replicas' gradients, before a method of the user's own."""
    step = current()
    if step is None or step.updating:
        return original(self, grads_and_vars, *args, **kwargs)
    pairs = list(grads_and_vars)
    grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]

    def run(own: list[Value | None]) -> Any:
        return self.apply_gradients(list(zip(own, variables, strict=True)), *args, **kwargs)

    return _of_replicas(step, self, grads, variables, run)


@hook(BaseOptimizer, "_clip_gradients", overrides=True)
def clip_gradients(
    original: Callable[..., Any], self: BaseOptimizer, grads: Any, *args: Any, **kwargs: Any
) -> Any:
    """Gives an optimizer what it clips, and updates by; records its norm."""
    if not one_device.is_traced() or is_outer(self):
        return original(self, grads, *args, **kwargs)
    own, grads = updating_of(self), list(grads)
    variables = update_protocol.traced_update().variables
    if len(grads) == len(variables):
        grads = own.clipped(self, grads, variables)
    else:
        own.check_left_out()
    if self.gradient_accumulation_steps:
        grads = own.recorded(grads)
    step_recording.gradient_norm(grads)
    return original(self, grads, *args, **kwargs)


@hook(TFOptimizer, "_all_reduce_sum_gradients")
def all_reduce_sum_gradients(
    original: Callable[..., Any], self: TFOptimizer, grads_and_vars: Any
) -> Any:
    """Leaves out Keras' own sum where there is one device, or all replicas have the same."""
    step = current()
    if one_device.is_traced() or (step is not None and step.updating):
        return list(grads_and_vars)
    return original(self, grads_and_vars)


@hook(TFOptimizer, "_backend_update_step")
def backend_update_step(
    original: Callable[..., Any],
    self: TFOptimizer,
    grads: Any,
    variables: Any,
    learning_rate: Any,
) -> Any:
    """Records trust ratios."""
    with step_recording.trust_ratios(len(variables_of_optimizer(self))):
        return original(self, grads, variables, learning_rate)


@hook(LossScaleOptimizer, "check_finite")
def check_finite(original: Callable[..., Any], self: LossScaleOptimizer, grads: Any) -> Any:
    """Asks whether all is finite without sums of gradients that are not sent whole."""

    def whole(own: list[Value | None]) -> Any:
        return original(self, own)

    if not one_device.is_traced():
        return whole(grads)
    return updating_of(self).all_finite(list(grads), whole)


def _of_replicas(
    step: ReplicaStep,
    optimizer: BaseOptimizer,
    grads: list[Value | None],
    variables: Sequence[Any],
    run: Callable[[list[Value | None]], Any],
) -> Any:
    """Makes an update by gradients of which each replica has its own."""
    scope_errors.check_optimizer(optimizer, step.strategy)
    return step.updates.update(step, optimizer, grads, variables, run)
