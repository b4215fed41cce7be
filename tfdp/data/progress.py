"""How far a pipeline has been trained: epochs, and examples of the present one."""

from __future__ import annotations

import logging
import threading

from tfdp.data import plan


class Progress:
    """The count of what was taken for training, and how long that was waited for.

    Batches are counted when a training step takes them, not when they are prefetched. Each number
    is right between two steps; safe for threads.

    Args:
      length: The examples of an epoch; None: not known before one has been read.
      global_batch_size: Of a batch, all replicas together.
      drop_remainder: Whether a short last batch is left out.
      skipped_source: What an iterator reads from its beginning to get to the place; None: nothing.

    Attributes:
      waited_seconds: For input, since the pipeline was made.
      batches: Taken since then.
      said_what_is_read: Whether the log says what each process reads.
    """

    def __init__(
        self,
        length: int | None,
        global_batch_size: int,
        drop_remainder: bool,
        skipped_source: str | None = None,
    ) -> None:
        self.length = length
        self.waited_seconds = 0.0
        self.batches = 0
        self.said_what_is_read = False
        self._global_batch_size = global_batch_size
        self._drop_remainder = drop_remainder
        self._skipped_source = skipped_source
        self._to_skip = 0
        self._read_length: int | None = None
        self._was_moved = False
        self._epoch = 0
        self._position = 0
        self._lock = threading.Lock()

    @property
    def place(self) -> tuple[int, int]:
        """The number of whole epochs, and of examples of the present one."""
        with self._lock:
            self._turn()
            return self._epoch, self._position

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was trained, nor restored."""
        return self.place == (0, 0) and not self._was_moved

    @property
    def batches_left(self) -> int | None:
        """Those of the present epoch; None where its length is not known."""
        _, position = self.place
        if self.length is None:
            return None
        left = self.length - position
        return plan.num_batches(left, self._global_batch_size, self._drop_remainder)

    def begin(self) -> tuple[int, int]:
        """The place, for an iterator that begins there; what it reads in vain will be logged."""
        place = self.place
        self._to_skip = place[1] if self._skipped_source else 0
        return place

    def move(self, epoch: int, position: int) -> None:
        """Sets the place."""
        with self._lock:
            self._epoch, self._position = epoch, position
            self._was_moved = True
            self._turn()

    def take(self, waited_seconds: float = 0.0) -> None:
        """Counts one more batch."""
        with self._lock:
            # Only an endless reader gives a batch after the end that it has seen.
            read = self._read_length
            if self.length is None and read is not None and self._is_end(read, self._position):
                self.length = read
            self._turn()
            self._position += self._global_batch_size
            self.waited_seconds += waited_seconds
            self.batches += 1
            self._turn()
            skipped, self._to_skip = self._to_skip, 0
        if skipped:
            logging.getLogger("tfdp").info(
                "Went on after the first %d examples of %s, which can only be read in order: that "
                "took %.1f s.",
                skipped,
                self._skipped_source,
                waited_seconds,
            )

    def read_to_end(self, length: int) -> None:
        """Notes the length of an epoch: a reader, who is ahead of the steps, has seen its end."""
        self._read_length = length

    def end(self) -> None:
        """Goes on to the next epoch: a step has found no batch left in this one.

        Only now the length counts: so the place depends on the steps, not on what is read ahead.
        """
        with self._lock:
            self.length = self._read_length if self.length is None else self.length
            self._turn()

    def has_nothing_after(self, position: int) -> bool:
        """Whether a reader has found no batch after a position other than 0."""
        read = self._read_length
        return position > 0 and read is not None and self._is_end(read, position)

    def _turn(self) -> None:
        """Goes on to the next epoch where this one has no batch left."""
        if self.length is not None and self._is_end(self.length, self._position):
            self._epoch, self._position = self._epoch + 1, 0

    def _is_end(self, length: int, position: int) -> bool:
        left = max(0, length - position)
        return plan.num_batches(left, self._global_batch_size, self._drop_remainder) == 0
