"""The interfaces of sources: random access by index, or a stream in a fixed order."""

import abc
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class AbstractSource(abc.ABC):
    """Examples, in an order that never changes.

    Attributes:
      element_spec: A nest of `tf.TypeSpec` of one example, without a batch axis.
      fingerprint: A text that tells this source from another and is cheap to make: of its kind, its
        number of examples where that is known, names and sizes of files, or a checksum of a few
        examples. Alike in every process and after a restart; no absolute paths.
      fingerprint_covers: In words, what the fingerprint is made from.
    """

    element_spec: Any
    fingerprint: str
    fingerprint_covers: str = "what the source's own `fingerprint` says"

    @abc.abstractmethod
    def describe(self) -> str:
        """Names the source in a few words, for errors: "4 TFRecord files in train"."""

    def content(self) -> dict[str, Any] | None:
        """Returns more about the examples than `fingerprint`, for a manifest, or None.

        Returns:
          A dict like that of `tfdp.callbacks.manifest.fingerprint_arrays`, with at least `checksum`
          and what it `covers`; None: there is no more.
        """
        return None

    def explain(self, indices: Iterable[int]) -> str | None:
        """Returns, after an error, what is wrong with the first example that cannot be read.

        Needed only where the error itself does not say it.

        Args:
          indices: The indices of the examples that were to come, the next first.
        """
        return None


class AbstractIndexedSource(AbstractSource):
    """Examples with random access: each worker reads those of its own replicas and no others.

    Attributes:
      element_spec: A nest of `tf.TypeSpec` of one example, without a batch axis.
      fingerprint: A text that tells this source from another; alike in every process and after a
        restart.
      vectorized: Whether `rows` is cheaper than as many calls of `row`. If not, as where each
        example is decoded, `row` is called in parallel.

    >>> class Squares(AbstractIndexedSource):
    ...     element_spec = tf.TensorSpec([], tf.int64)
    ...     fingerprint = "squares of 4"
    ...
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def rows(self, indices):
    ...         return indices**2
    ...
    ...     def describe(self):
    ...         return "4 squares"
    >>> squares = Squares()
    >>> squares.rows(tf.constant([3, 1], tf.int64)).numpy(), int(squares.row(tf.constant(2)))
    (array([9, 1]), 4)
    >>> squares.describe(), squares.explain([0]), squares.content()
    ('4 squares', None, None)
    """

    vectorized: bool = True

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    @abc.abstractmethod
    def rows(self, indices: tf.Tensor) -> Any:
        """Reads several examples; called in a graph, by tf.data.

        Args:
          indices: The indices of the examples, int64, shape (k,); in any order, each in [0, len).

        Returns:
          A nest like `element_spec`, each tensor with a leading axis of k.
        """

    def row(self, index: tf.Tensor) -> Any:
        """Reads one example; called in a graph, by tf.data.

        Args:
          index: The index of the example, an int64 scalar in [0, len).

        Returns:
          A nest like `element_spec`.
        """
        return tf.nest.map_structure(lambda leaf: leaf[0], self.rows(index[None]))


class AbstractStreamSource(AbstractSource):
    """Examples that can only be read from the first to the last: every worker reads all of them.

    Attributes:
      element_spec: A nest of `tf.TypeSpec` of one example, without a batch axis.
      fingerprint: A text that tells this source from another; alike in every process and after a
        restart.

    >>> class Lines(AbstractStreamSource):
    ...     element_spec = tf.TensorSpec([], tf.string)
    ...     fingerprint = "lines of poem.txt"
    ...     num_examples = None
    ...
    ...     def examples(self):
    ...         return tf.data.Dataset.from_tensor_slices(["one", "two"])
    ...
    ...     def describe(self):
    ...         return "the lines of poem.txt"
    >>> lines = Lines()
    >>> [line.numpy() for line in lines.examples()], lines.num_examples
    ([b'one', b'two'], None)
    >>> lines.describe(), lines.explain([0]), lines.content()
    ('the lines of poem.txt', None, None)
    """

    @abc.abstractmethod
    def examples(self) -> tf.data.Dataset:
        """Returns all examples, one by one, in the same order each time."""

    @property
    @abc.abstractmethod
    def num_examples(self) -> int | None:
        """The number of examples; None where only reading them tells."""


def call_with_indices(
    method: Callable[[np.ndarray], Any], indices: tf.Tensor, specs: Sequence[tf.TensorSpec]
) -> list[tf.Tensor]:
    """Calls a bound method by `tf.numpy_function`.

    TensorFlow keeps every such function, with all that it holds, as long as the process lives. So
    the function here holds nothing: the graph that is traced keeps the method's object, and what a
    dataset reads is freed when the dataset is.

    Args:
      method: A bound method that takes an array of indices and returns an array, or a list of them,
        with one element for each index along axis 0.
      indices: The method's argument, shape (k,).
      specs: For each array the spec of one element.

    Returns:
      The method's result, each array of shape (k, ...).

    >>> import numpy as np
    >>> class Doubled:
    ...     def read(self, indices):
    ...         return [2 * indices]
    >>> spec = tf.TensorSpec([], tf.int32)
    >>> call_with_indices(Doubled().read, tf.constant([3]), [spec])[0].numpy()
    array([6], dtype=int32)
    """
    reference = weakref.WeakMethod(method)
    owner = method.__self__  # type: ignore[attr-defined]
    if not tf.executing_eagerly():
        tf.compat.v1.get_default_graph().add_to_collection("tfdp_readers", owner)

    def call(argument: np.ndarray) -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError(
                "A source must live as long as the dataset that reads it; it is gone. Keep the "
                "dataset that was made of it."
            )
        return alive(argument)

    results = tf.numpy_function(call, [indices], [spec.dtype for spec in specs])
    if tf.is_tensor(results):
        results = [results]  # eagerly a single result is no list
    for result, spec in zip(results, specs, strict=True):
        result.set_shape([indices.shape[0], *spec.shape])
    return results
