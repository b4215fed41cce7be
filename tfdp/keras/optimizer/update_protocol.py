"""What becomes of gradients that reach an optimizer, and of what it keeps: one protocol.

An optimizer's program is that of one device. What replicas make otherwise in it is said here, and
nowhere else: which of its variables have which layout, and where summands are summed otherwise
than the program asks for. `Updating` itself is the plain way: what the program needs whole is
summed, and accumulated gradients are summands until a window closes.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdp.communication.replicas import Value, replicas_of
from tfdp.keras import step_recording
from tfdp.keras._keras import BaseOptimizer, LossScaleOptimizer, strategy_of_optimizer
from tfdp.keras.nested_optimizers import innermost

# The outermost optimizer of the update that is being traced; and the variables that the innermost
# updates, in the order of the gradients that it clips.
_outermost: contextvars.ContextVar[Any] = contextvars.ContextVar("outermost", default=None)
_variables: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("variables", default=())

# Whether the update is of gradients that one replica has computed of the whole batch.
_of_one_replica = contextvars.ContextVar("of_one_replica", default=False)


class Updating:
    """Gradients are summed whole."""

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
        """Changes what was made to be kept for a variable."""

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

    def accumulated(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Returns what an optimizer goes on with that wraps no other: of a window what it adds.

        Args:
          optimizer: The optimizer.
          gradients: What a method of the user's own, or one that wraps it, has made of gradients.
          variables: The variables that it updates.
        """
        return gradients

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Returns what is clipped, and updated by: of a window the mean of its gradients."""
        return list(gradients)

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
          whole: Returns it of whole gradients.
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
    is_outermost = _outermost.get() is None
    outer = _outermost.set(optimizer) if is_outermost else None
    token = _variables.set(own)
    try:
        yield is_outermost
    finally:
        _variables.reset(token)
        if outer is not None:
            _outermost.reset(outer)


@contextlib.contextmanager
def of_one_replica() -> Iterator[None]:
    """Says that updates that are traced within are of whole gradients, which nobody sends."""
    token = _of_one_replica.set(True)
    try:
        yield
    finally:
        _of_one_replica.reset(token)


def is_of_one_replica() -> bool:
    """Returns whether the update that is being traced is of whole gradients."""
    return _of_one_replica.get()


def variables_updated() -> Sequence[Any]:
    """Returns the variables of the update that is being traced."""
    return _variables.get()


def outermost() -> BaseOptimizer:
    """Returns the optimizer that was called first in the update that is being traced."""
    return _outermost.get()


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
