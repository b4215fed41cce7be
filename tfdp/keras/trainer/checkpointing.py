"""What `fit` does for a `Checkpoint` among its callbacks: it tells it of the data, and goes on."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfdp.callbacks import Checkpoint
from tfdp.callbacks.checkpoint.place import AbstractPlace, Executions, PipelinePlace
from tfdp.callbacks.checkpoint.replayed_place import ReplayedPlace
from tfdp.data.feed import AbstractFeed


def checkpoint_among(callbacks: Sequence[Any], data: Any) -> Checkpoint | None:
    """Returns the Checkpoint among callbacks, which is told of the data and of the others.

    Args:
      callbacks: The callbacks of `fit`.
      data: What `fit` is given as `x`.

    Raises:
      ValueError: There are two, or one that keeps a training in another way.
    """
    keeping = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    backups = [c for c in callbacks if isinstance(c, keras.callbacks.BackupAndRestore)]
    if backups and not keeping:
        logging.getLogger("tfdp").warning(
            "BackupAndRestore begins an epoch anew (with `save_freq=N` batches come twice), and "
            "forgets the seeds of random layers. "
            "`tfdp.callbacks.Checkpoint(folder, every_steps=1000)` goes on after the last step "
            "that it has kept, with the same bits."
        )
    if len(keeping) + len(backups) > 1 and keeping:
        kinds = [type(callback).__name__ for callback in (*keeping, *backups)]
        raise ValueError(
            f"`fit` must be given one callback at most that goes on with a training, but received "
            f"{' and '.join(kinds)}: it goes on from one place. Keep one Checkpoint, with more "
            "files by `keep=`; weights for other uses by `keras.callbacks.ModelCheckpoint`."
        )
    if not keeping:
        return None
    place = PipelinePlace(data) if isinstance(data, AbstractFeed) else ReplayedPlace(data)
    keeping[0].watch(place, callbacks)
    return keeping[0]


@contextlib.contextmanager
def closing(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Closes a checkpoint at the end of the context, and says whether it ended well."""
    well = False
    try:
        yield
        well = True
    finally:
        if checkpoint is not None:
            checkpoint.close(well)


def executions(
    place: AbstractPlace | None, original: Callable[[Any], Executions], iterator: Any
) -> Executions:
    """Returns the executions of an epoch that are still to be made.

    Args:
      place: The place in the data, if a checkpoint keeps it.
      original: The function of Keras that returns an epoch's executions.
      iterator: Keras' iterator over epochs, which the function is given.
    """
    if place is None:
        return original(iterator)
    return place.executions(original, iterator, lambda: _length(iterator))


def _length(iterator: Any) -> int | None:
    """Returns how many batches the next epoch of Keras' iterator takes; None: not known."""
    left = iterator._num_batches
    if left and iterator.steps_per_epoch and iterator._current_iterator is not None:
        left -= iterator._steps_seen  # an iterator goes on where the epoch before has ended
    return min((n for n in (iterator.steps_per_epoch, left) if n), default=None)
