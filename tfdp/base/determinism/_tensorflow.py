"""The private TensorFlow names that determinism needs, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/base/determinism/test_private_names.py` fails when one
moves.
"""

# The seed that `tf.random.set_seed` was given: there is no public way to read it.
from tensorflow.python.eager.context import global_seed

# `tf.config.experimental.enable_op_determinism` has no public counterpart that reads the setting.
from tensorflow.python.framework.config import is_op_determinism_enabled

__all__ = ["global_seed", "is_op_determinism_enabled"]
