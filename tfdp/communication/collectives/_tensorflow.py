"""The private TensorFlow names that the collectives use, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/communication/collectives/test_runtime.py` fails when one
of them moves.
"""

# The configuration that TensorFlow's runtime is started with, whose idle threads spin for work.
from tensorflow.core.protobuf.config_pb2 import ConfigProto

# The description of a server that TensorFlow starts for the collectives between processes.
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef

# `context` starts that server without `MultiWorkerMirroredStrategy`, which allows one CPU device
# per process, and ends the collectives that wait for a rank that is gone.
# `global_seed` reads the seed that `tf.random.set_seed` set: there is no public way to read it.
from tensorflow.python.eager.context import Context, context, global_seed

from tfdp.base.hooks import Attribute

# The part of the context's configuration that no public function sets.
context_config = Attribute(Context, "_config")

__all__ = ["ConfigProto", "ServerDef", "context", "context_config", "global_seed"]
