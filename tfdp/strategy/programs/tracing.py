"""The context in which a program is traced as on one device, with the strategy's variables."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import one_device
from tfdp.strategy._tensorflow_programs import (
    ControlStatusCtx,
    SaveOptions,
    Status,
    UnliftableError,
    context,
    default_replica_mode,
    is_saving,
    lift_to_graph,
    pop_thread_mode,
    push_thread_mode,
    pywrap_tfe,
    save_context,
    saving_state,
    variable_creators,
)


@contextlib.contextmanager
def outside_of_graphs() -> Iterator[None]:
    """Leaves the graphs that are being built, as `tf.init_scope` does; tapes inside record."""
    if tf.executing_eagerly():
        yield
        return
    with tf.init_scope():
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Traces what is called inside without what watches the user's operations.

    Such as the check of all numbers: it is of the program, and what replicas send needs no other.
    """
    before = context().invoking_op_callbacks
    context().invoking_op_callbacks = True
    try:
        yield
    finally:
        context().invoking_op_callbacks = before


@contextlib.contextmanager
def as_on_one_device(strategy: tf.distribute.Strategy, **known: bool) -> Iterator[None]:
    """Traces what is called inside as TensorFlow's default strategy has it: one replica.

    The strategy's variables are their first copies, and new ones are made in its scope.

    Args:
      strategy: The strategy.
      **known: What is known of the program, see `one_device.traced`.
    """
    graph = tf.compat.v1.get_default_graph()
    outer_creators = variable_creators(graph)
    variable_creators.set(graph, [])
    push_thread_mode(default_replica_mode())
    try:
        # While a model is saved, too, variables with copies stand for the first of them.
        creator = tf.variable_creator_scope(_creator(strategy))
        # A function around that AutoGraph leaves alone does not decide for this one.
        converts = ControlStatusCtx(Status.UNSPECIFIED)
        with one_device.traced(**known), save_context(SaveOptions()), creator, converts:
            yield
    finally:
        pop_thread_mode()
        variable_creators.set(graph, outer_creators)


@contextlib.contextmanager
def in_scope(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Leaves the program that is being traced, if one is, and enters the strategy's scope."""
    with tf.init_scope(), _not_saving(), one_device.left(), strategy.scope():
        yield


def _creator(strategy: tf.distribute.Strategy) -> Callable[..., tf.Variable]:
    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        if not one_device.is_traced():  # in the scope: it is a copy
            return next_creator(**kwargs)
        # The parts of `tf.Variable`'s interface; the rest is the function's that is traced.
        given = {
            name: value
            for name, value in kwargs.items()
            if value is not None and name != "distribute_strategy"
        }
        initial = given.get("initial_value")
        if callable(initial):
            initial = initial()
        given["initial_value"] = outside(initial)
        with in_scope(strategy):
            return tf.Variable(**given)

    return create


def outside(value: Any) -> Any:
    """Returns the value of a tensor of the graph that is being traced; of all else, what it is.

    Raises:
      ValueError: An argument of the graph's decides it.
    """
    if not tf.is_symbolic_tensor(value):
        return value

    @tf.function(autograph=False)
    def alone() -> tf.Tensor:
        return lift_to_graph([value], tf.compat.v1.get_default_graph())[value]

    with tf.init_scope():
        try:
            return alone.get_concrete_function()()  # a call would warn of many traces
        except UnliftableError as error:
            raise ValueError(
                "What a variable begins with must be known when it is made, but a variable is made "
                f"in a step, and begins with {value.op.type} of the step's batch. Make it before "
                "the first step, in `with strategy.scope():`, and write it in the step by `assign`."
            ) from error


@contextlib.contextmanager
def _not_saving() -> Iterator[None]:
    outer = is_saving(saving_state)
    is_saving.set(saving_state, False)
    try:
        yield
    finally:
        is_saving.set(saving_state, outer)
