"""What a source of examples is: random access by index, or a stream in a fixed order."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

import tensorflow as tf


class AbstractSource(abc.ABC):
    """Examples, in an order that never changes.

    Attributes:
      element_spec: A nest of `tf.TypeSpec` of one example, without a batch axis.
      fingerprint: What tells this source from another, cheap to make: its kind, its number of
        examples where that is known, names and sizes of files, or a checksum of a few examples.
        Alike in every process and after a restart; no absolute paths.
      fingerprint_covers: In words, what it is made from.
    """

    element_spec: Any
    fingerprint: str
    fingerprint_covers: str = "what the source's own `fingerprint` says"

    @abc.abstractmethod
    def describe(self) -> str:
        """The source in a few words, as an error names it: "4 TFRecord files in train"."""

    def content(self) -> dict[str, Any] | None:
        """More about the examples than `fingerprint`, for a manifest; None: there is no more.

        Returns:
          As `tfdp.manifest.fingerprint_arrays`: at least `checksum`, and what that `covers`.
        """
        return None

    def explain(self, indices: Iterable[int]) -> str | None:
        """Called after an error: what is wrong with the first of these that cannot be read.

        Needed only where the error itself does not say.

        Args:
          indices: Of the examples that were to come, the next first.
        """
        return None


class AbstractIndexedSource(AbstractSource):
    """Random access: each worker reads the examples of its own replicas and no others.

    Attributes:
      vectorized: Whether `rows` is cheaper than as many calls of `row`. If not, as where each
        example is decoded, `row` is called in parallel.
    """

    vectorized: bool = True

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abc.abstractmethod
    def rows(self, indices: tf.Tensor) -> Any:
        """Several examples; called in a graph, by tf.data.

        Args:
          indices: int64, shape (k,); in any order, each in [0, len).

        Returns:
          A nest like `element_spec`, each tensor with a leading axis of k.
        """

    def row(self, index: tf.Tensor) -> Any:
        """One example; called in a graph, by tf.data.

        Args:
          index: int64 scalar in [0, len).

        Returns:
          A nest like `element_spec`.
        """
        return tf.nest.map_structure(lambda leaf: leaf[0], self.rows(index[None]))


class AbstractStreamSource(AbstractSource):
    """Examples that can only be read from the first to the last: every worker reads all of them."""

    @abc.abstractmethod
    def examples(self) -> tf.data.Dataset:
        """All examples, one by one, in the same order each time."""

    @property
    @abc.abstractmethod
    def num_examples(self) -> int | None:
        """The number of examples; None where only reading them tells."""
