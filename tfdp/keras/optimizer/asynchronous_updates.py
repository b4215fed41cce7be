"""Updates of a rank that trains apart: after each round it exchanges weights with their homes.

The replicas of the rank's process sum their gradients in each step, and hold the same weights. So
one of them exchanges, from the host, and the others are sent what it has taken.
"""

import contextlib
import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.homes import RanksApart
from tfdp.communication.replicas import Value, processes_of
from tfdp.keras._keras import (
    BaseOptimizer,
    iterations_of_optimizer,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras.nested_optimizers import innermost, is_wrapper, optimizers_of
from tfdp.keras.optimizer.per_replica_updates import call, when
from tfdp.keras.optimizer.update_protocol import Updating, traced_update
from tfdp.keras.replica_step import Phase, ReplicaStep

# The attribute of an optimizer with the name of its weights at their homes. Keras would track one
# that is set in the usual way.
_VECTOR = "tfdp_vector"

# The attribute of an optimizer that a step has called.
_UPDATES = "tfdp_updates"

# The attribute of an optimizer with what `_now` said of it when the ranks met last.
_MET = "tfdp_met"


class AsynchronousUpdates(Updating):
    """Updates by the sums of a rank's own gradients, and an exchange after each round.

    Args:
      every: The number of updates in a round.
    """

    ends_with_epochs = False

    def __init__(self, every: int) -> None:
        self._every = every

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Checks what an optimizer is built for."""
        yield
        if not is_wrapper(optimizer):
            _check(variables_of_optimizer(optimizer))
            _check_averages(optimizer, _processes(optimizer))

    def _join(self, optimizer: BaseOptimizer) -> None:
        """Gives variables the weights that are at their homes, before an optimizer's first update.

        Not when it is built: `load_model` and programs set weights after that.
        """
        held = variables_of_optimizer(optimizer)
        if _VECTOR in vars(optimizer) or not held:  # of a model without trainable weights
            return
        processes = _processes(optimizer)
        with tf.init_scope():
            name = vars(optimizer)[_VECTOR] = processes.vector()
            _set(held, processes.homes.begin(name, _joined(held)))
            if rounds := processes.homes.rounds(name):  # of a rank that comes again
                steps = self._every * (optimizer.gradient_accumulation_steps or 1)
                iterations_of_optimizer(optimizer).assign(rounds * steps)
            vars(optimizer)[_MET] = _now(optimizer)

    @contextlib.contextmanager
    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> Iterator[list[Value | None]]:
        """Exchanges after the update that ends a round."""
        for one in innermost(optimizer):
            _check_alone(one)
            vars(one)[_UPDATES] = True
            self._join(one)
        optimizers = [one for one in innermost(optimizer) if _VECTOR in vars(one)]
        before = [tf.identity(tf.convert_to_tensor(one.iterations)) for one in optimizers]
        yield gradients
        for one, count in zip(optimizers, before, strict=True):
            updates = tf.convert_to_tensor(one.iterations)
            ends = tf.equal(updates % self._every, 0) & (updates > count)
            if tf.executing_eagerly():  # one device's update, which is written to all replicas
                if ends:
                    held = variables_of_optimizer(one)
                    _set(held, _processes(one).exchange(vars(one)[_VECTOR], _joined(held)))
                continue
            exchange = functools.partial(_exchange, one)
            call([ends], exchange, lambda values: [], variables_of_optimizer(one))

    def begin(self, strategy: Any, optimizer: BaseOptimizer, state: Sequence[Any]) -> None:
        """Lets ranks compare what layers keep, before the first update of an optimizer."""
        processes = processes_of(strategy)
        assert isinstance(processes, RanksApart)
        is_first = _VECTOR not in vars(optimizer)
        if optimizer.built:
            _begin_anew_if_set(optimizer)
            self._join(optimizer)
        if is_first and processes.turns.parts > 1:
            held = [each for each in state if tf.as_dtype(each.dtype).is_floating]
            checksum = zlib.crc32(_joined(held).tobytes()) if held else 0
            processes.turns.compare_state(checksum)

    def end(self, strategy: Any, optimizer: BaseOptimizer) -> None:
        """Waits for all ranks to send what they have changed, and goes on as they do."""
        if optimizer.built:
            self._join(optimizer)
        name = vars(optimizer).get(_VECTOR)
        if name is not None:
            held = variables_of_optimizer(optimizer)
            # One that `compile` has made, and a step of the user's own leaves out, has no changes:
            # those of its variables are other optimizers'.
            own = _joined(held) if int(iterations_of_optimizer(optimizer)) else None
            taken = _processes(optimizer).homes.end({name: own})[name]
            if taken is not None:
                _set(held, taken)
            vars(optimizer)[_MET] = _now(optimizer)

    def end_state(self, strategy: Any, variables: Sequence[Any]) -> None:
        """Gives all ranks the mean of what their layers keep, such as moving statistics."""
        held = [each for each in variables if tf.as_dtype(each.dtype).is_floating]
        processes = processes_of(strategy)
        assert isinstance(processes, RanksApart)
        if held and processes.cluster_size > 1:
            _set(held, processes.homes.mean("the state of layers", _joined(held)))


def _exchange(
    optimizer: BaseOptimizer, step: ReplicaStep, values: list[Value], are_own: list[bool]
) -> list[Value]:
    variables = variables_of_optimizer(optimizer)
    processes, dtype = _processes(optimizer), _dtype(variables)
    own = [tf.convert_to_tensor(tensorflows(variable)) for variable in variables]

    def exchange(weights: np.ndarray) -> np.ndarray:
        return processes.exchange(vars(optimizer)[_VECTOR], weights)

    def exchanged() -> None:
        flat = tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in own], 0)
        if step.index == 0:
            with tf.device("CPU:0"):
                taken = tf.numpy_function(exchange, [flat], dtype)
            flat = tf.ensure_shape(taken, flat.shape)
        flat = step.replicas.broadcast_from_first(flat, dtype)
        parts = tf.split(flat, [value.shape.num_elements() for value in own])
        with step.during(Phase.UPDATE), step.replicas.identical_writes():
            for variable, value, part in zip(variables, own, parts, strict=True):
                held = tensorflows(variable)
                held.assign(tf.cast(tf.reshape(part, value.shape), held.dtype))

    when(values[0], exchanged)
    return []


def _processes(optimizer: BaseOptimizer) -> RanksApart:
    # An eager step, which is one device's, has its strategy's ranks, too.
    processes = strategy_of_optimizer(optimizer).extended.processes
    assert isinstance(processes, RanksApart)
    return processes


def _dtype(variables: Sequence[Any]) -> tf.DType:
    """Returns the dtype in which weights are exchanged: float32, or float64 if some have that."""
    return tf.float64 if any(each.dtype == "float64" for each in variables) else tf.float32


def _check(variables: Sequence[Any]) -> None:
    """Raises ValueError for variables that cannot be averaged as real numbers."""
    for variable in variables:
        if not tf.as_dtype(variable.dtype).is_floating:
            raise ValueError(
                "`Asynchronous` adds changes of floating-point weights, but "
                f"{variable.path!r} is of {variable.dtype}. Use "
                "synchronization=tfdp.synchronization.LocalSGD(every=10) for it."
            )


def _check_alone(optimizer: BaseOptimizer) -> None:
    """Raises ValueError if another optimizer of the model has updated some of the variables."""
    own = {id(variable): variable.path for variable in variables_of_optimizer(optimizer)}
    model = traced_update().model
    for other in [] if model is None else optimizers_of(model):
        if other is optimizer or not vars(other).get(_UPDATES):
            continue
        both = [own[id(each)] for each in variables_of_optimizer(other) if id(each) in own]
        if both:
            raise ValueError(
                "Under `Asynchronous` each optimizer exchanges the variables that it updates, "
                f"which must be no other's, but {other.name!r} and {optimizer.name!r} both update "
                f"{', '.join(both[:4])}: their changes would count twice. Give each its own "
                "variables, or `compile` the model again with another optimizer; if one is of a "
                "model within it that was trained before, `compile` that one with a new optimizer."
            )


def _begin_anew_if_set(optimizer: BaseOptimizer) -> None:
    """Lets one rank begin with weights that a program has set since the last training.

    Raises:
      ValueError: There are several ranks, each of which would add them as a change.
    """
    met = vars(optimizer).get(_MET)
    if met is None or _UPDATES not in vars(optimizer):  # of no step: others update its variables
        return
    (updates, checksum), (updates_now, checksum_now) = met, _now(optimizer)
    if updates != updates_now or checksum == checksum_now:
        return
    if _processes(optimizer).cluster_size > 1:
        raise ValueError(
            "Under `Asynchronous` ranks go on with the weights that they ended with, but weights "
            f"of {optimizer.name!r} were set since then, which each rank would add as a change of "
            "its own. `compile` the model with a new optimizer after you set weights; it begins "
            "with those of rank 0."
        )
    del vars(optimizer)[_VECTOR]


def _now(optimizer: BaseOptimizer) -> tuple[int, int]:
    """Returns an optimizer's number of updates and a checksum of its weights."""
    checksum = zlib.crc32(_joined(variables_of_optimizer(optimizer)).tobytes())
    return int(iterations_of_optimizer(optimizer)), checksum


def _check_averages(optimizer: BaseOptimizer, processes: RanksApart) -> None:
    """Raises ValueError for moving averages of weights, which ranks could not go on with."""
    if optimizer.use_ema and processes.cluster_size > 1:
        raise ValueError(
            "Under `Asynchronous` each rank would end `fit` with moving averages of its own, which "
            f"are no change of the common weights, but {optimizer.name!r} has use_ema=True. Leave "
            "it out, or use synchronization=tfdp.synchronization.LocalSGD(every=10), which ends "
            "with the mean of them."
        )


def _joined(variables: Sequence[Any]) -> np.ndarray:
    """Returns the weights of this rank in one vector."""
    dtype = _dtype(variables).as_numpy_dtype
    return np.concatenate([np.asarray(each.numpy(), dtype).ravel() for each in variables])


def _set(variables: Sequence[Any], joined: np.ndarray) -> None:
    """Gives all copies of this rank the weights that a vector holds."""
    place = 0
    for variable in variables:
        count = int(np.prod(variable.shape))
        variable.assign(joined[place : place + count].reshape(variable.shape))
        place += count
