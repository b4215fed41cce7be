"""Every private TensorFlow name that the pipelines use, each with its reason.

Tested with TensorFlow 2.21.0. `tests/data/test_tensorflow.py` fails when one of them moves.
"""

# The iterator that `tf.function` knows as an argument: the one that counts batches extends it.
from tensorflow.python.data.ops.iterator_ops import IteratorSpec, OwnedIterator

__all__ = ["IteratorSpec", "OwnedIterator"]
