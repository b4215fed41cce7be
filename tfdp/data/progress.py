"""The progress of a pipeline's training: what was trained of it, and which view begins where."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from tfdp.data import epoch_plan
from tfdp.data.tally import Tally


@dataclasses.dataclass(frozen=True)
class View:
    """One way to look at a pipeline; all views of a pipeline share the progress.

    Attributes:
      endless: Whether the next epoch follows where one ends.
      from_start: Whether it begins with the first batch of epoch 0, whatever was trained, and
        counts nothing.
      counts: Whether the batches that iterators give count as trained.
      share_fn: A function that is applied to each replica's share of a batch, as `Dataset.map`
        does; None: the shares stay as they are.
    """

    endless: bool = False
    from_start: bool = False
    counts: bool = True
    share_fn: Callable[..., Any] | None = None


class PipelineProgress:
    """The count of the batches taken for training, and of the seconds waited for them.

    Batches are counted when a training step takes them, not when they are prefetched. Each number
    is right between two steps. Threads may read and write it.

    Args:
      length: The number of examples of an epoch; None: not known before one has been read.
      global_batch_size: The number of examples of a batch, all replicas together.
      drop_remainder: Whether a short last batch is left out.

    Attributes:
      tally: The tally in which iterators count the batches that steps take.
      said_what_is_read: Whether the log says what each process reads.
    """

    def __init__(
        self,
        length: int | None,
        global_batch_size: int,
        drop_remainder: bool,
    ) -> None:
        self._length = length
        self.tally = Tally()
        self.said_what_is_read = False
        self._global_batch_size = global_batch_size
        self._drop_remainder = drop_remainder
        self._read_length: int | None = None
        self._was_moved = False
        self._counted = 0  # batches of the tally that `_epoch` and `_position` include
        self._epoch = 0
        self._position = 0
        self._lock = threading.Lock()

    @property
    def length(self) -> int | None:
        """The number of examples of an epoch; None: not known before one has been read."""
        with self._lock:
            self._count()
            return self._length

    @property
    def batches(self) -> int:
        """The number of batches taken since the pipeline was made."""
        return self.tally.read()[0]

    @property
    def waited_seconds(self) -> float:
        """The seconds that steps waited for these batches."""
        return self.tally.read()[1]

    @property
    def place(self) -> tuple[int, int]:
        """The number of whole epochs, and of examples of the present one."""
        with self._lock:
            self._count()
            return self._epoch, self._position

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was trained, nor restored."""
        return self.place == (0, 0) and not self._was_moved

    @property
    def batches_left(self) -> int | None:
        """The number of batches left in the present epoch; None: its length is not known."""
        _, position = self.place
        if self._length is None:
            return None
        left = self._length - position
        return epoch_plan.num_batches(left, self._global_batch_size, self._drop_remainder)

    def move(self, epoch: int, position: int) -> None:
        """Sets the place: the epoch, and the number of its examples."""
        with self._lock:
            self._count()
            self._epoch, self._position = epoch, position
            self._was_moved = True
            self._turn()

    def take(self, waited_seconds: float = 0.0, batches: int = 1) -> None:
        """Counts batches, as iterators do."""
        self.tally.add(waited_seconds, float(batches))

    def read_to_end(self, length: int) -> None:
        """Notes the length of an epoch, whose end a reader, ahead of the steps, has seen."""
        self._read_length = length

    def end(self) -> None:
        """Goes on to the next epoch: a step has found no batch left in this one.

        The length of a stream counts only from now on. So the place depends on the steps, not on
        what is read ahead.
        """
        with self._lock:
            self._count()
            self._length = self._read_length if self._length is None else self._length
            self._turn()

    def has_nothing_after(self, position: int) -> bool:
        """Returns whether a reader has found no batch after a position other than 0."""
        read = self._read_length
        return position > 0 and read is not None and self._is_end(read, position)

    def _count(self) -> None:
        """Brings the place up to the number of batches in the tally."""
        self._turn()
        taken = self.batches
        for _ in range(taken - self._counted):
            # Only an endless reader gives a batch after the end that it has seen.
            read = self._read_length
            if self._length is None and read is not None and self._is_end(read, self._position):
                self._length = read
                self._turn()
            self._position += self._global_batch_size
            self._turn()
        self._counted = taken

    def _turn(self) -> None:
        """Goes on to the next epoch if this one has no batch left."""
        if self._length is not None and self._is_end(self._length, self._position):
            self._epoch, self._position = self._epoch + 1, 0

    def _is_end(self, length: int, position: int) -> bool:
        left = max(0, length - position)
        return epoch_plan.num_batches(left, self._global_batch_size, self._drop_remainder) == 0
