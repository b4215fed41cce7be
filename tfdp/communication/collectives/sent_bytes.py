"""The bytes that sums send, counted while they are traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf


class SentBytes:
    """Counts what a rank sends, where somebody asks for it.

    >>> sent = SentBytes()
    >>> sent.note(1)
    >>> with sent.counted() as found:
    ...     sent.note(8)
    >>> found, sent.is_asked
    ([8], False)
    """

    def __init__(self) -> None:
        self._asked: tuple[list[int | None], tf.Graph] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether anybody asks for it."""
        return self._asked is not None

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[int | None]]:
        """Counts within the context.

        Yields:
          A list with the bytes of each bucket; None where a step may send others: those of unknown
          sizes, and in a branch or a loop.
        """
        before, found = self._asked, list[int | None]()
        self._asked = found, tf.compat.v1.get_default_graph()
        try:
            yield found
        finally:
            self._asked = before

    def note(self, sent: int | tf.Tensor) -> None:
        """Adds a bucket's bytes."""
        if self._asked is not None:
            found, graph = self._asked
            is_always = isinstance(sent, int) and tf.compat.v1.get_default_graph() is graph
            found.append(sent if is_always else None)
