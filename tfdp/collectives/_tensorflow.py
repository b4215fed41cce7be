"""The private TensorFlow names that the collectives use, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/collectives/test_runtime.py` fails when one of them moves.
"""

# The description of a server that TensorFlow starts for the collectives between processes.
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef

# `context` starts that server without `MultiWorkerMirroredStrategy`, which allows one CPU device
# per process, and ends the collectives that wait for a rank that is gone.
# `global_seed` reads the seed that `tf.random.set_seed` set: there is no public way to read it.
from tensorflow.python.eager.context import context, global_seed

__all__ = ["ServerDef", "context", "global_seed"]
