"""Where a training is in its data; a pipeline of tfdp goes there without reading."""

import abc
from collections.abc import Callable, Iterator
from typing import Any

from tfdp.communication.collectives import random_states

# What Keras' iterator gives for each execution: its first and last step, and the data to take.
Executions = Iterator[tuple[int, int, Any]]


class AbstractPlace(abc.ABC):
    """The place of a training in the data that `fit` is given.

    Attributes:
      steps: How many steps were made, all epochs together.
      steps_in_epoch: How many steps of the present epoch were made.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.steps_in_epoch = 0
        self._given = 0  # of the present epoch, with the execution that runs
        self._length: int | None = None

    @property
    def is_within_epoch(self) -> bool:
        """Whether a step of the present epoch was made and another one is sure to come."""
        return self._length is not None and 0 < self.steps_in_epoch < self._length

    @abc.abstractmethod
    def begin(self) -> None:
        """Notes what the order of the data rests on; training begins.

        Raises:
          ValueError: The data could not be read again.
        """

    def end_steps(self) -> None:
        self.steps += self._given - self.steps_in_epoch
        self.steps_in_epoch = self._given

    def end_epoch(self) -> None:
        self.steps_in_epoch = self._given = 0

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns the place as JSON."""
        return {"steps": self.steps, "steps_in_epoch": self.steps_in_epoch}

    @abc.abstractmethod
    def restore(
        self, state: dict[str, Any], random: dict[str, Any], log: Callable[..., None]
    ) -> None:
        """Goes to a place, at the latest before the next step.

        Args:
          state: What `state` returned.
          random: The random states of Python and NumPy at that time.
          log: Logs what takes time.

        Raises:
          ValueError: The state is of other data.
        """
        self.steps, self.steps_in_epoch = state["steps"], state["steps_in_epoch"]
        self._given = self.steps_in_epoch

    @abc.abstractmethod
    def executions(
        self,
        original: Callable[[Any], Executions],
        iterator: Any,
        length: Callable[[], int | None],
    ) -> Executions:
        """Returns the executions of an epoch that are still to be made.

        Args:
          original: The function of Keras that returns an epoch's executions.
          iterator: Keras' iterator over epochs, which the function is given.
          length: Returns how many batches Keras will take in the epoch that begins; None: until
            there are no more.
        """

    def _counting(self, executions: Executions) -> Executions:
        for begin, end, data in executions:
            self._given = end + 1 if self._length is None else min(end + 1, self._length)
            yield begin, end, data


class PipelinePlace(AbstractPlace):
    """The place in a pipeline of tfdp, which goes there without reading.

    >>> import numpy as np, tfdp
    >>> batches = tfdp.data.pipeline((np.ones([8, 4]),), 4, seed=1)
    >>> PipelinePlace(batches).state()["pipeline"]["position"]
    0
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._random: dict[str, Any] | None = None

    def begin(self) -> None:
        """Notes nothing: the order rests on the pipeline's own seed."""

    def state(self) -> dict[str, Any]:
        """Returns the steps, and the pipeline's own state."""
        return {**super().state(), "pipeline": self._pipeline.state()}

    def restore(
        self, state: dict[str, Any], random: dict[str, Any], log: Callable[..., None]
    ) -> None:
        check_kind(state, "pipeline", kept="no `tfdp.data.pipeline`", given="one")
        super().restore(state, random, log)
        self._pipeline.restore(state["pipeline"])
        random_states.set_states(random)
        # An epoch's callbacks draw when it begins; within it they have drawn before.
        self._random = random if self.steps_in_epoch > 0 else None

    def executions(
        self,
        original: Callable[[Any], Executions],
        iterator: Any,
        length: Callable[[], int | None],
    ) -> Executions:
        """Returns the executions that are left, with the numbers that their steps have."""
        if self._random is not None:
            random_states.set_states(self._random)
            self._random = None
        done, left = self.steps_in_epoch, length()
        if iterator.steps_per_epoch:  # Keras counts all steps of its epoch
            self._length = left
            check_boundary(done, iterator.steps_per_execution)
            executions = (e for e in original(iterator) if e[0] >= done)
        else:  # Keras counts the batches that the pipeline has left
            self._length = None if left is None else done + left
            executions = ((b + done, e + done, data) for b, e, data in original(iterator))
        return self._counting(executions)


def check_kind(state: dict[str, Any], key: str, *, kept: str, given: str) -> None:
    """Checks that a state is of a place of one kind, whose states have a key.

    Raises:
      ValueError: It is of the other kind.
    """
    if key not in state:
        raise ValueError(
            f"The data must be those of the checkpoint, but those were {kept}, and `fit` was given "
            f"{given}. Give `fit` the data of then."
        )


def check_boundary(steps: int, steps_per_execution: int) -> None:
    """Checks that an execution begins after so many steps of an epoch.

    Raises:
      ValueError: None does.
    """
    if steps % steps_per_execution:
        raise ValueError(
            "A training can only go on between two executions, but the checkpoint was kept after "
            f"{steps} steps of an epoch, and steps_per_execution={steps_per_execution}. Compile "
            "with the `steps_per_execution` of then."
        )
