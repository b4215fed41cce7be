"""The private names of TensorFlow that verification needs, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/verification/test_fresh_state.py` fails when one moves.
"""

# The global seed, and the generator of eager operations' seeds: public functions set them anew, but
# cannot restore them.
from tensorflow.python.eager.context import context

__all__ = ["context"]
