"""Every private TensorFlow name that verification needs, each with its reason.

Tested with TensorFlow 2.21.0. `tests/verification/test_session.py` fails when one moves.
"""

# The global seed and what eager operations draw their seeds from: it can be set, but not put back.
from tensorflow.python.eager.context import context

__all__ = ["context"]
