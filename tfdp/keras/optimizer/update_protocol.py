"""The protocol of an optimizer's update: the way of its gradients and of its state.

An optimizer's program is that of one device. What replicas make otherwise in it is said here, and
nowhere else: which of its variables have which layout, and where partial values are summed
otherwise than the program asks for. `Updating` itself is the plain way: what the program needs
replicated is summed, and accumulated gradients are partial until a window closes.
"""

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from tfdp.communication.replicas import HasLayout, Value, replicas_of
from tfdp.keras import step_recording
from tfdp.keras._keras import (
    BaseOptimizer,
    LossScaleOptimizer,
    strategy_of_optimizer,
    value_of_variable,
)
from tfdp.keras.nested_optimizers import innermost

# What calls an optimizer, given gradients.
Apply: TypeAlias = Callable[[list[Value | None]], Any]


class TracedUpdate(NamedTuple):
    """The update that is being traced.

    Attributes:
      outermost: The optimizer that was called first in it; None: there is no update.
      variables: What the innermost updates, in the order of the gradients that it clips.
      is_of_one_replica: Whether its gradients are whole, as one replica has computed them of the
        whole batch; nobody sends them.
      due: The sums of earlier gradients that it applies, by the id of an optimizer and the key of a
        variable.
      ends_delay: Whether it applies these alone, and no gradients wait in their place.
      model: The model of whose training step it is a part; None: of none.
    """

    outermost: Any = None
    variables: Sequence[Any] = ()
    is_of_one_replica: bool = False
    due: Mapping[int, Mapping[str, tf.Tensor]] = types.MappingProxyType({})
    ends_delay: bool = False
    model: Any = None


_NO_UPDATE = TracedUpdate()
_update = contextvars.ContextVar("update", default=_NO_UPDATE)


class Updating:
    """Gradients are summed whole.

    Attributes:
      ends_with_epochs: Whether an epoch of `fit` ends what updates have left open; else `fit` does.
    """

    ends_with_epochs = True

    def building(
        self, optimizer: BaseOptimizer, variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which an optimizer is built for its variables.

        Raises:
          ValueError: It cannot be, with what the strategy's replicas exchange.
        """
        return contextlib.nullcontext()

    def making(
        self, optimizer: BaseOptimizer, initializer: Any, accumulates: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which what is kept for a variable is made.

        Args:
          optimizer: The optimizer.
          initializer: Its first value.
          accumulates: Whether it is an accumulated gradient.
        """
        replicas = replicas_of(strategy_of_optimizer(optimizer))
        if replicas is None or not accumulates:
            return contextlib.nullcontext()
        return replicas.summed_on_read()

    def made(self, optimizer: BaseOptimizer, variable: Any, slot: Any, accumulates: bool) -> None:
        """Changes what was made to be kept for a variable, or notes for which."""
        kept = value_of_variable(slot)
        if isinstance(kept, HasLayout):
            is_of_keras = isinstance(variable, keras.Variable)
            kept.follows = value_of_variable(variable) if is_of_keras else variable

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Returns a context in which an optimizer is called, which gives it its gradients.

        Args:
          optimizer: The outermost optimizer, built.
          gradients: What reaches it.
          variables: The variables that it updates.
        """
        return contextlib.nullcontext(gradients)

    def applying(
        self,
        optimizer: BaseOptimizer,
        gradients: list[Value | None],
        variables: Sequence[Any],
        apply: Apply,
    ) -> None:
        """Calls an optimizer that wraps no other, by what it updates by, or adds to a window.

        Args:
          optimizer: The optimizer.
          gradients: What a method of the user's own, or one that wraps it, has made of gradients.
          variables: The variables that it updates.
          apply: Calls it, given gradients.
        """
        apply(gradients)

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Returns what is clipped, and updated by: of a window the mean of its gradients."""
        return list(gradients)

    def begin(self, strategy: Any, optimizer: BaseOptimizer, state: Sequence[Any]) -> None:
        """Begins a `fit`. All processes must call it.

        Args:
          strategy: The optimizer's strategy.
          optimizer: An optimizer that wraps no other.
          state: What the model keeps beside what it trains.
        """

    def end(self, strategy: Any, optimizer: BaseOptimizer) -> None:
        """Ends what updates have left open, outside of steps. All processes must call it.

        Args:
          strategy: The optimizer's strategy.
          optimizer: An optimizer that wraps no other.
        """

    def tell(self, strategy: Any) -> None:
        """Says what is to be said of the updates of a `fit` at its end. All processes call it."""

    def end_state(self, strategy: Any, variables: Sequence[Any]) -> None:
        """Gives all processes what layers keep, where each has its own. All must call it.

        Args:
          strategy: The strategy.
          variables: The variables of a model that no optimizer updates.
        """

    def check_left_out(self) -> None:
        """Checks that a method of the user's own may leave gradients out; whole sums are used then.

        Whose the others are is not known.
        """

    def recorded(self, gradients: list[Value | None]) -> list[Value | None]:
        """Records an update by gradients, if something records; returns what is used for them."""
        return step_recording.update(gradients)

    def all_finite(
        self,
        gradients: list[Value | None],
        whole: Callable[[list[Value | None]], Any],
    ) -> Any:
        """Returns whether all gradients are finite, the same on all replicas.

        Args:
          gradients: What reaches an optimizer.
          whole: Returns it of replicated gradients.
        """
        return whole(gradients)


@contextlib.contextmanager
def updated(
    optimizer: BaseOptimizer, gradients: Sequence[Value | None], variables: Sequence[Any]
) -> Iterator[bool]:
    """Notes the variables of an update, as Keras goes on with them: those with a gradient.

    Yields:
      Whether no other optimizer has called this one.
    """
    own = [
        variable
        for gradient, variable in zip(gradients, variables, strict=False)
        if gradient is not None and not getattr(variable, "overwrite_with_gradient", False)
    ]
    outermost = traced_update().outermost
    first = optimizer if outermost is None else outermost
    with tracing(outermost=first, variables=own):
        yield outermost is None


def of_one_replica() -> contextlib.AbstractContextManager[None]:
    """Says that updates that are traced within are of whole gradients, which nobody sends."""
    return tracing(is_of_one_replica=True)


def traced_update() -> TracedUpdate:
    """Returns the update that is being traced."""
    return _update.get()


@contextlib.contextmanager
def tracing(**changed: Any) -> Iterator[None]:
    """Changes what `traced_update` returns within the context."""
    token = _update.set(_update.get()._replace(**changed))
    try:
        yield
    finally:
        _update.reset(token)


def accumulates(optimizer: BaseOptimizer) -> bool:
    """Returns whether an optimizer, or one in it, accumulates gradients."""
    return any(one.gradient_accumulation_steps for one in innermost(optimizer))


def check_range(compression: Any, optimizer: BaseOptimizer) -> None:
    """Raises ValueError if gradients that are scaled against underflow would travel unscaled."""
    is_scaling = isinstance(optimizer, LossScaleOptimizer)
    scaled = is_scaling or optimizer.loss_scale_factor is not None
    scaled &= strategy_of_optimizer(optimizer).extended.num_replicas > 1
    if scaled and not compression.keeps_range:
        raise ValueError(
            f"Gradients that a loss scale protects must travel with it, but an optimizer with "
            "`gradient_accumulation_steps` sums them without it, once for each window, and "
            f"received compression={compression!r}, which holds no small and no large "
            'numbers. Use compression=tfdp.compression.Cast("bfloat16"), or no '
            "gradient_accumulation_steps."
        )


def build(optimizer: BaseOptimizer, variables: Sequence[Any]) -> None:
    """Builds an optimizer, if it is not built, with the names that its first update gives."""
    if optimizer.built:
        return
    with keras.name_scope(optimizer.name):
        optimizer.build(list(variables))
    optimizer.built = True
