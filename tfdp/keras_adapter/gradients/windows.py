"""Windows of accumulation: which gradients wait until one closes, and are used for nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras

from tfdp.errors import GradientError
from tfdp.keras_adapter._keras import TensorFlowTrainer, variables_of_optimizer
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.walk import Place, users


class Windows:
    """The rule by which gradients wait until a window closes: those that an optimizer accumulates.

    Answers are kept, so that all replicas get the first one's: asking again after the first replica
    has built the optimizer could give another answer, and the replicas' traces would part.

    Args:
      model: The model that is trained.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = weakref.ref(model)  # shares keep this object, but must not keep the model
        self._answers: dict[tuple[int, ...], bool] = {}

    @property
    def keras_own_step(self) -> bool:
        """Whether the model's `train_step` is Keras' own."""
        found = getattr(self._model(), "train_step", None)
        return getattr(found, "__func__", None) is TensorFlowTrainer.train_step

    def is_for_update(self, variables: Sequence[Any]) -> bool:
        """Returns whether gradients with respect to `variables` are those of Keras' own update."""
        found = getattr(self._model(), "trainable_weights", ())
        return self.keras_own_step and [*map(id, variables)] == [*map(id, found)]

    def wait(self, variables: Sequence[Any]) -> bool:
        """Returns whether gradients with respect to `variables` wait."""
        key = tuple(map(id, variables))
        if key not in self._answers:
            self._answers[key] = self._find(set(key))
        return self._answers[key]

    def _find(self, variables: set[int]) -> bool:
        found = [inner for optimizer in self._optimizers() for inner in innermost(optimizer)]
        accumulate = [bool(o.gradient_accumulation_steps) for o in found]
        if all(accumulate) or not any(accumulate):
            return any(accumulate)
        # Some optimizers accumulate, and one that is not built cannot say for which variables. Its
        # gradients are summed at once: still right, for a reduction in each micro-batch.
        return any(
            o.gradient_accumulation_steps
            and o.built
            and any(id(v) in variables for v in variables_of_optimizer(o))
            for o in found
        )

    def _optimizers(self) -> list[Any]:
        """Returns the optimizers that the model has as attributes, also in lists and dicts."""
        kept: list[Any] = []
        for value in vars(self._model()).values():
            if isinstance(value, dict):
                kept += value.values()
            else:
                kept += value if isinstance(value, (list, tuple)) else [value]
        return [value for value in kept if isinstance(value, keras.optimizers.Optimizer)]


def check_waiting(step: Step) -> None:
    """Checks, at the end of a trainer's step, that waiting gradients went into updates alone.

    Raises:
      GradientError: The step used one for something else.
    """
    waiting, allowed = step.waiting, step.linear
    step.waiting, step.linear = [], []
    for value in waiting:
        for user, _ in users(Place(value)):
            if not any(user.attributes is op for op in allowed):
                raise used_before_sum(step, f"gives it to `{user.type}`")


def used_before_sum(step: Step, how: str) -> GradientError:
    """Returns the error of a step that uses a gradient which waits for its sum.

    Args:
      step: The step.
      how: What the step does with it.
    """
    of_updates = step.replicas.exchange.update_compression is not None
    which = (
        "an optimizer accumulates or the strategy's `compression` takes"
        if of_updates
        else ("an optimizer accumulates")
    )
    instead = " in a `train_step` of your own, or no `compression`" if of_updates else ""
    return GradientError(
        f"A gradient that {which} is summed over replicas in the update, when its window closes, "
        f"and before that must be used for nothing else, but the step {how}. Use the optimizer's "
        f"own clipnorm, global_clipnorm or clipvalue, or no gradient_accumulation_steps{instead}."
    )
