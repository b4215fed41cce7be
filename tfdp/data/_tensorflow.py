"""The private TensorFlow names that the pipelines use, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/data/test_tensorflow.py` fails when one of them moves.
"""

# The iterator that `tf.function` accepts as an argument; `CountingIterator` extends it.
from tensorflow.python.data.ops.iterator_ops import IteratorSpec, OwnedIterator

__all__ = ["IteratorSpec", "OwnedIterator"]
