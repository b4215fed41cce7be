"""The random seed and states that all processes have from rank 0, so that they shuffle alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.cluster.board import Board
from tfdp.collectives import runtime


def adopt_seeds(board: Board) -> None:
    """Adopts rank 0's seed of TensorFlow, or one that it draws, and its random states."""
    seed = runtime.global_seed()
    if board.rank == 0 and seed is None:
        seed = random.SystemRandom().randrange(2**31)
        tf.random.set_seed(seed)
    first = board.from_first("the random seed of rank 0", seed).value
    if board.rank != 0:
        tf.random.set_seed(first)
    adopt_states(board)


def adopt_states(board: Board) -> None:
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
