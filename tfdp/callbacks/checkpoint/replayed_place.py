"""The place in data of any kind, which are read again from the beginning of the training.

Keras' own adapters and tf.data shuffle by states that cannot be read; from the same seeds they give
the same batches again.
"""

import contextlib
import time
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks.checkpoint.data_place import (
    AbstractPlace,
    Executions,
    check_boundary,
    check_kind,
)
from tfdp.communication import collectives
from tfdp.communication.collectives import random_states

_NAMES = {
    "seed": "seed of TensorFlow",
    "python": "state of Python's `random`",
    "numpy": "state of `numpy.random`",
}

# Data that a training of this process has read, by their ids.
_read_before: dict[int, weakref.ref[Any]] = {}


class ReplayedPlace(AbstractPlace):
    """The place in data of any kind, which are read again from the beginning of the training.

    Args:
      data: What `fit` is given as `x`.

    >>> tf.random.set_seed(1)
    >>> place = ReplayedPlace([1, 2])
    >>> place.begin()
    >>> place.state()["epochs"], place.state()["steps_in_epoch"]
    (0, 0)
    """

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data
        self._epochs = 0
        self._begun_with: dict[str, Any] = {}
        self._to_replay: tuple[dict[str, Any], Callable[..., None]] | None = None

    def begin(self) -> None:
        """Notes the seed of TensorFlow, and the random states of Python and NumPy."""
        seed = collectives.global_seed()
        if seed is None:
            raise ValueError(
                "With Checkpoint the data must come in the same order again when the training goes "
                "on, but no seed is set. Call `keras.utils.set_random_seed(1)` at the start of the "
                "program, or give `fit` a `tfdp.data.pipeline`, which has a seed of its own."
            )
        if _gives_once(self._data):
            _check_unread(self._data)
        self._begun_with = {"seed": seed, **random_states.states()}

    def end_epoch(self) -> None:
        """Counts the epochs that were read."""
        super().end_epoch()
        self._epochs += 1

    def state(self) -> dict[str, Any]:
        """Returns the steps and epochs, and what the order of the data rests on."""
        return {**super().state(), "epochs": self._epochs, "begun_with": self._begun_with}

    def restore(
        self, state: dict[str, Any], random: dict[str, Any], log: Callable[..., None]
    ) -> None:
        """Checks that the data come in the same order; the next epoch reads up to the place."""
        check_kind(state, "begun_with", kept="a `tfdp.data.pipeline`", given="other data")
        for key, name in _NAMES.items():
            there, here = state["begun_with"][key], self._begun_with[key]
            if there != here:
                values = f" ({there}; now {here})" if key == "seed" else ""
                raise ValueError(
                    "The data come in the same order again only from the same seeds, but when the "
                    f"training of the checkpoint began, the {name} was another one{values}. Call "
                    "`keras.utils.set_random_seed` with the seed of then at the start of the "
                    "program, and draw as often before `fit`."
                )
        super().restore(state, random, log)
        self._epochs = state["epochs"]
        self._to_replay = random, log
        if self.steps_in_epoch == 0:  # callbacks draw when the epoch begins
            random_states.set_states(random)

    def executions(
        self,
        original: Callable[[Any], Executions],
        iterator: Any,
        length: Callable[[], int | None],
    ) -> Executions:
        """Reads up to the place, if that was restored, and returns the executions after it."""
        if self._to_replay is None:
            self._length = length()
            return self._counting(original(iterator))
        (random, log), self._to_replay = self._to_replay, None
        began = time.perf_counter()
        present = random if self.steps_in_epoch > 0 else random_states.states()
        random_states.set_states(self._begun_with)
        read = sum(_read_epoch(original, iterator, length()) for _ in range(self._epochs))
        self._length = length()
        executions = original(iterator)
        read += _read_steps(executions, iterator, self._length, self.steps_in_epoch)
        if read != self.steps:
            raise ValueError(
                f"The data must be those of the checkpoint, which was kept after {self.steps} "
                f"batches, but these have {read} up to that place. Give `fit` the data of then, or "
                "Checkpoint another folder."
            )
        if read:
            log(
                "%d batches were read again in %.1f s, up to where the training goes on; a "
                "`tfdp.data.pipeline` goes there without reading.",
                read,
                time.perf_counter() - began,
            )
        self._restore_random(present, random, log)
        return self._counting(executions)

    def _restore_random(
        self, present: dict[str, Any], random: dict[str, Any], log: Callable[..., None]
    ) -> None:
        """Restores the random states of before the data were read, unless these draw as well."""
        now = random_states.states()
        if now == random or all(now[key] == self._begun_with[key] for key in now):
            random_states.set_states(present)
        else:
            log(
                "The data draw from Python's or NumPy's random state, which is not what it was at "
                "the checkpoint: they draw ahead of the steps, and then all is well, or something "
                "else draws too, and then the training differs from here on. Let the data draw "
                "from a generator of their own, `numpy.random.default_rng(seed)`."
            )


def _gives_once(data: Any) -> bool:
    """Returns whether data may come in another order when they are read again."""
    return isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)) or hasattr(data, "__next__")


def _check_unread(data: Any) -> None:
    before = _read_before.get(id(data))
    if before is not None and before() is data:
        raise ValueError(
            "With Checkpoint each `fit` needs data that none has read before, but the same "
            f"{type(data).__name__} was given to an earlier one, which has moved its shuffling on. "
            "Make it anew before each `fit`."
        )
    with contextlib.suppress(TypeError):  # not all iterators can be referred to weakly
        _read_before[id(data)] = weakref.ref(data)


def _read_epoch(original: Callable[[Any], Executions], iterator: Any, length: int | None) -> int:
    """Reads an epoch as Keras' loop does, and returns the number of its steps."""
    read = 0
    with iterator.catch_stop_iteration():
        for execution in original(iterator):
            read = _read(execution, length)
    return read


def _read_steps(executions: Executions, iterator: Any, length: int | None, steps: int) -> int:
    """Reads the first steps of an epoch, and returns how many there were."""
    check_boundary(steps, iterator.steps_per_execution)
    read = 0
    with contextlib.suppress(StopIteration):
        while read < steps:
            read = _read(next(executions), length)
    return read


def _read(execution: tuple[int, int, Any], length: int | None) -> int:
    """Takes the batches of an execution, and returns the number of steps up to its end.

    Raises:
      StopIteration: There is none.
    """
    begin, end, data = execution
    stop = end + 1 if length is None else min(end + 1, length)
    for step in range(begin, stop):
        try:
            next(data)
        except (StopIteration, tf.errors.OutOfRangeError):
            if step == begin:
                raise StopIteration from None
            break
    return stop
