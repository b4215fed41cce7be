"""The seed that the process was given, and whether it made a strategy. Imports no TensorFlow."""

import dataclasses
import sys
from typing import Any


@dataclasses.dataclass
class _State:
    seed: int | None = None
    strategy_made: bool = False


# Python's, NumPy's and TensorFlow's seeds are the process', and so is what tfdp knows of them.
_STATE = _State()


def chosen_seed() -> int | None:
    """Returns the seed that `enable_determinism` was last given; None if it was not called."""
    return _STATE.seed


def choose_seed(seed: int) -> None:
    """Notes the seed that `enable_determinism` was given."""
    _STATE.seed = seed


def note_strategy_made() -> None:
    """Notes that a strategy of tfdp was made; each strategy calls it."""
    _STATE.strategy_made = True


def strategy_was_made() -> bool:
    return _STATE.strategy_made


def are_operations_deterministic() -> bool:
    """Returns whether TensorFlow was asked for operations that give the same bits in each run."""
    if "tensorflow" not in sys.modules:
        return False
    from tfdp.base.determinism import _tensorflow

    return bool(_tensorflow.is_op_determinism_enabled())


def seeds() -> dict[str, Any]:
    """Returns the random state of the process, as far as it can be known; JSON.

    Returns:
      `seed`: the number; None if none was set. `set_by`: the function that it was given to;
      `tf.random.set_seed` may be tfdp's own call, which in a cluster gives all ranks rank 0's seed.
      `deterministic`: whether TensorFlow's operations are. The seeds that `random.seed` or
      `numpy.random.seed` were given cannot be read.

    >>> sorted(seeds())
    ['deterministic', 'seed', 'set_by']
    """
    found: tuple[int | None, str | None] = (None, None)
    if "keras" in sys.modules and "tensorflow" in sys.modules:
        from tfdp.base.determinism import _keras, _tensorflow

        of_tensorflow, of_keras = _tensorflow.global_seed(), _keras.get_random_seed()
        if of_tensorflow is not None:
            found = (int(of_tensorflow), "tf.random.set_seed")
        if of_keras is not None and of_keras == of_tensorflow:
            found = (int(of_keras), "keras.utils.set_random_seed")
    if _STATE.seed is not None and found[0] in (None, _STATE.seed):
        found = (_STATE.seed, "tfdp.enable_determinism")
    return {"seed": found[0], "set_by": found[1], "deterministic": are_operations_deterministic()}
