"""The random seed and states that all processes have from rank 0, and all traces from the first."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.cluster.control_channel import ControlChannel
from tfdp.communication.collectives import runtime


class DrawnOnce:
    """The random states of Python and NumPy for traces of one program that follow each other.

    What they draw is drawn once, as where there is one trace: each begins with the states of now,
    and the first one's last states hold in the end.

    >>> once = DrawnOnce()
    >>> drawn = []
    >>> for number in range(3):
    ...     with once.trace(is_first=number == 0):
    ...         drawn.append(random.random())
    >>> len(set(drawn)), random.random() in drawn
    (1, False)
    """

    def __init__(self) -> None:
        self._begun = self._drawn = self._now()

    @contextlib.contextmanager
    def trace(self, is_first: bool) -> Iterator[None]:
        """Returns a context for one of the traces."""
        self._go_on(self._begun)
        try:
            yield
        finally:
            if is_first:
                self._drawn = self._now()
            self._go_on(self._drawn)

    @staticmethod
    def _now() -> tuple[Any, Any]:
        return random.getstate(), np.random.get_state(legacy=False)

    @staticmethod
    def _go_on(states: tuple[Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])


def adopt_seeds(board: ControlChannel) -> None:
    """Adopts rank 0's seed of TensorFlow, or one that it draws, and its random states."""
    seed = runtime.global_seed()
    if board.rank == 0 and seed is None:
        seed = random.SystemRandom().randrange(2**31)
        tf.random.set_seed(seed)
    first = board.from_first("the random seed of rank 0", seed).value
    if board.rank != 0:
        tf.random.set_seed(first)
    adopt_states(board)


def adopt_states(board: ControlChannel) -> None:
    """Adopts rank 0's random states of Python and NumPy; all ranks must call it."""
    own = states() if board.rank == 0 else {}
    first = board.from_first("the random states of rank 0", own).value
    if board.rank != 0:
        set_states(first)


def states() -> dict[str, Any]:
    """Returns the random states of Python and NumPy as JSON."""
    python: Any = random.getstate()
    array: Any = np.random.get_state(legacy=True)
    return {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [array[0], np.asarray(array[1]).tolist(), *array[2:]],
    }


def set_states(states: dict[str, Any]) -> None:
    """Sets the random states of Python and NumPy to what `states` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(states["numpy"]))
