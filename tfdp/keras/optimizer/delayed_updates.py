"""Updates by the gradients of an earlier step, whose sum travels while this one computes.

The program is that of one device which delays its gradients: it updates by those that have waited
long enough, and lets its own wait. What waits is partial, as an accumulated gradient is, so that
replicas need no sum of the gradients that they compute. The oldest are summed by a per-replica
call, which nothing of the step must come before.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.replicas import Value, replicas_of
from tfdp.keras import step_recording
from tfdp.keras._keras import (
    BaseOptimizer,
    accumulators_of_optimizer,
    iterations_of_optimizer,
    key_of_variable,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras.nested_optimizers import innermost, is_wrapper, optimizers_of
from tfdp.keras.optimizer.per_replica_updates import PerReplicaUpdates, call, dense, when
from tfdp.keras.optimizer.update_protocol import Apply, traced_update, tracing
from tfdp.keras.replica_step import ReplicaStep

# The attribute of an optimizer with what waits, where `tfdp.callbacks.checkpoint` finds it. In
# Keras' own list it would make files of the model unlike those of one device.
_WAITING = "tfdp_waiting"

# The attribute with the programs that apply all that waits, by the keys of the variables.
_ENDS = "tfdp_ends_of_delay"


class DelayedUpdates(PerReplicaUpdates):
    """The optimizer updates by gradients of `steps` updates before.

    Args:
      steps: How many.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Makes what waits for each variable, once for a built optimizer.

        Raises:
          ValueError: It averages weights in batches that apply nothing.
        """
        if optimizer.use_ema and optimizer.gradient_accumulation_steps:
            raise ValueError(
                "Under `Delayed` a moving average must follow what is applied, but with "
                "`gradient_accumulation_steps` Keras updates it in each batch, also while a "
                f"window waits; received {optimizer.name!r} with both and `use_ema`. Leave one "
                "out."
            )
        yield
        if is_wrapper(optimizer) or _WAITING in vars(optimizer):
            return
        strategy = strategy_of_optimizer(optimizer)
        delayed = [each for each in variables_of_optimizer(optimizer) if _is_delayed(each)]
        with tf.init_scope():
            # `values`: for each place in the queue, of which the first is the oldest, a variable
            # for each of the optimizer's; `count`: how many places at the end have gradients.
            vars(optimizer)[_WAITING] = {
                "values": [
                    {key_of_variable(optimizer, each): _made(strategy, each) for each in delayed}
                    for _ in range(self._steps)
                ],
                "count": tf.Variable(0, trainable=False, dtype=tf.int64, name="delayed_updates"),
                "updated": [],
            }

    @contextlib.contextmanager
    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> Iterator[list[Value | None]]:
        """Sums what is due, before anything else of the update.

        Raises:
          ValueError: The end of an epoch would not find the optimizer.
        """
        if traced_update().ends_delay:
            yield gradients
            return
        _check_is_found(optimizer)
        pairs = zip(gradients, variables, strict=False)
        updated = [variable for gradient, variable in pairs if gradient is not None]
        due = {
            id(one): _summed(one, 0, _keys(one, updated), _ends_window(one))
            for one in innermost(optimizer)
            if _WAITING in vars(one)
        }
        with tracing(due=due):
            yield gradients

    def applying(
        self,
        optimizer: BaseOptimizer,
        gradients: list[Value | None],
        variables: Sequence[Any],
        apply: Apply,
    ) -> None:
        """Updates by what is due, if there is something, and lets gradients wait in its place."""
        ends_delay = _WAITING not in vars(optimizer) or traced_update().ends_delay
        # Of a variable that it does not know Keras says so.
        if ends_delay or len(_keys(optimizer, variables)) < sum(map(_is_delayed, variables)):
            apply(gradients)
            return
        given = [dense(*pair) for pair in zip(gradients, variables, strict=True)]
        _check_updated(optimizer, given, variables)
        for gradient, variable in zip(given, variables, strict=True):
            if gradient is not None and not _is_delayed(variable):  # as Keras does
                variable.assign(gradient)
        # Without a batch, where data of unknown length end, nothing is updated: see
        # `argument_free_effects`.
        with tf.control_dependencies([each for each in given if each is not None]):
            is_due = tf.equal(vars(optimizer)[_WAITING]["count"].read_value(), self._steps)
        if not optimizer.gradient_accumulation_steps:
            due = _due_of(optimizer, given, variables)
            when(is_due, lambda: apply(step_recording.update(due)))
            _wait(optimizer, given, variables)
            return
        fills = _ends_window(optimizer) & ~is_due
        when(~fills, lambda: apply(given))
        when(fills, lambda: self._fill(optimizer, given, variables))

    def _fill(
        self, optimizer: BaseOptimizer, gradients: Sequence[Value | None], variables: Sequence[Any]
    ) -> None:
        """Lets a window wait, and updates by nothing; what counts is as if it had not been."""
        steps, scale = optimizer.gradient_accumulation_steps, optimizer.loss_scale_factor
        sums = dict(
            zip(
                map(
                    functools.partial(key_of_variable, optimizer), variables_of_optimizer(optimizer)
                ),
                accumulators_of_optimizer(optimizer),
                strict=True,
            )
        )
        means = list(gradients)
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is not None and _is_delayed(variable):
                own = gradient if scale is None else gradient / scale
                kept = sums[key_of_variable(optimizer, variable)]
                means[index] = (own + tf.convert_to_tensor(kept)) / steps
        _wait(optimizer, means, variables)
        for kept in accumulators_of_optimizer(optimizer):
            if kept is not None:
                kept.assign(tf.zeros(kept.shape, kept.dtype))
        iterations_of_optimizer(optimizer).assign_add(1 - steps)

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Gives what is due in place of a window's mean, which waits."""
        if not optimizer.gradient_accumulation_steps:
            return list(gradients)
        due = _due_of(optimizer, gradients, variables)
        if not traced_update().ends_delay:
            _wait(optimizer, gradients, variables)
        return step_recording.update(due)

    def end(self, strategy: Any, optimizer: BaseOptimizer) -> None:
        """Applies all that waits, the oldest first."""
        waiting = vars(optimizer).get(_WAITING)
        if waiting is None or not int(waiting["count"].numpy()):
            return
        updated = tuple(waiting["updated"] or waiting["values"][0])
        programs = vars(optimizer).setdefault(_ENDS, {})
        if updated not in programs:
            apply_all = functools.partial(_apply_all, optimizer, updated)
            programs[updated] = strategy.partitioned(apply_all)
        programs[updated]()


def _apply_all(optimizer: BaseOptimizer, keys: Sequence[str]) -> None:
    waiting = vars(optimizer)[_WAITING]
    steps, count = len(waiting["values"]), waiting["count"].read_value()
    for place in range(steps):
        when(count >= steps - place, functools.partial(_apply, optimizer, place, keys))
    waiting["count"].assign(0)


def _apply(optimizer: BaseOptimizer, place: int, keys: Sequence[str]) -> None:
    """Updates by what waits in a place; a window that is open stays as it is."""
    sums = _summed(optimizer, place, keys, None)
    variables = [
        each
        for each in variables_of_optimizer(optimizer)
        if key_of_variable(optimizer, each) in keys
    ]
    due = [sums[key_of_variable(optimizer, each)] for each in variables]
    with tracing(due={id(optimizer): sums}, ends_delay=True):
        if not optimizer.gradient_accumulation_steps:
            BaseOptimizer.apply(optimizer, due, variables)
            return
        windows = optimizer.gradient_accumulation_steps
        iterations = iterations_of_optimizer(optimizer)
        place_in_window = tf.convert_to_tensor(iterations) % windows
        accumulators = [each for each in accumulators_of_optimizer(optimizer) if each is not None]
        kept = [tf.convert_to_tensor(each) for each in accumulators]
        iterations.assign_add(windows - 1 - place_in_window)
        BaseOptimizer.apply(optimizer, due, variables)
        for accumulator, value in zip(accumulators, kept, strict=True):
            accumulator.assign(value)
        iterations.assign_add(place_in_window)


def _summed(
    optimizer: BaseOptimizer, place: int, keys: Sequence[str], is_needed: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Returns by key the sums over replicas of what waits in a place.

    Args:
      optimizer: The optimizer.
      place: The place.
      keys: The keys of the variables.
      is_needed: Whether they are; None: they are.
    """
    held = [vars(optimizer)[_WAITING]["values"][place][key] for key in keys]

    def own(given: Sequence[Value] = ()) -> list[Value]:
        return [tf.convert_to_tensor(each) for each in held]

    def sums(step: ReplicaStep, given: list[Value], are_own: list[bool]) -> list[Value]:
        def summed() -> list[Value]:
            with recording.watching_buckets(of_update=False, timed=False):
                return step.replicas.sum_without_gradient(own())

        return summed() if is_needed is None else tf.cond(given[0], summed, own)

    needed = [] if is_needed is None else [is_needed]
    return dict(zip(keys, call(needed, sums, own, reads=held, beside=True), strict=True))


def _due_of(
    optimizer: BaseOptimizer, gradients: Sequence[Value | None], variables: Sequence[Any]
) -> list[Value | None]:
    """Returns the sums that are due in place of gradients."""
    due = traced_update().due.get(id(optimizer))
    if due is None:  # of an optimizer within another, which has it as no attribute of Keras'
        due = _summed(optimizer, 0, _keys(optimizer, variables), None)
    return [
        due[key_of_variable(optimizer, variable)]
        if gradient is not None and _is_delayed(variable)
        else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _wait(
    optimizer: BaseOptimizer, gradients: Sequence[Value | None], variables: Sequence[Any]
) -> None:
    """Lets gradients wait, after those that wait already."""
    waiting = vars(optimizer)[_WAITING]
    queue = waiting["values"]
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None or not _is_delayed(variable):
            continue
        places = [values[key_of_variable(optimizer, variable)] for values in queue]
        for older, newer in itertools.pairwise(places):
            older.assign(tf.convert_to_tensor(newer))
        places[-1].assign(tf.cast(gradient, places[-1].dtype))
    count = waiting["count"]
    count.assign(tf.minimum(count.read_value() + 1, len(queue)))


def _ends_window(optimizer: BaseOptimizer) -> tf.Tensor | None:
    """Returns whether the present step ends a window; None: there are none."""
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        return None
    return tf.equal((tf.convert_to_tensor(iterations_of_optimizer(optimizer)) + 1) % steps, 0)


def _check_updated(
    optimizer: BaseOptimizer, gradients: Sequence[Value | None], variables: Sequence[Any]
) -> None:
    """Checks that the variables are those whose gradients wait.

    Raises:
      ValueError: They are others, of which none waits, or not all.
    """
    pairs = zip(gradients, variables, strict=True)
    keys = _keys(optimizer, [variable for gradient, variable in pairs if gradient is not None])
    waiting = vars(optimizer)[_WAITING]
    if waiting["updated"] in ([], keys):
        waiting["updated"] = keys
        return
    raise ValueError(
        "Under `Delayed` all updates of an optimizer must be of the same variables, since each "
        f"applies what the one before left, but {optimizer.name!r} updates {len(keys)} variables "
        f"where others of its updates have {len(waiting['updated'])}, or others. Use an optimizer "
        "for each set of variables."
    )


def _check_is_found(optimizer: BaseOptimizer) -> None:
    """Checks that the model whose step updates has the optimizer, so that an epoch's end finds it.

    Raises:
      ValueError: It has not.
    """
    model = traced_update().model
    if model is None or set(map(id, innermost(optimizer))) <= set(map(id, optimizers_of(model))):
        return
    raise ValueError(
        "Under `Delayed` the model must have each optimizer that its `train_step` calls, so that "
        f"the end of an epoch applies what waits, but {optimizer.name!r} is no attribute of "
        f"{model.name!r}, nor in a list or dict of one. Assign it to an attribute of the model."
    )


def _keys(optimizer: BaseOptimizer, variables: Sequence[Any]) -> list[str]:
    """Returns the keys of those of some variables that are the optimizer's, and are delayed."""
    known = vars(optimizer)[_WAITING]["values"][0]
    return [key for each in variables if (key := key_of_variable(optimizer, each)) in known]


def _is_delayed(variable: Any) -> bool:
    """Returns whether gradients of a variable wait; some are no gradients, but its next value."""
    return not getattr(variable, "overwrite_with_gradient", False)


def _made(strategy: Any, variable: Any) -> tf.Variable:
    replicas = replicas_of(strategy)
    assert replicas is not None  # else there is no strategy that delays
    placed = strategy.extended.colocate_vars_with(tensorflows(variable))
    with placed, replicas.summed_on_read(), replicas.made_alone():
        zeros = tf.zeros(variable.shape, variable.dtype)
        return tf.Variable(zeros, trainable=False, name="delayed_gradient")
