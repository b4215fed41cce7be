"""The private TensorFlow names that `tfdp.xla` uses, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/xla/test_tensorflow.py` fails when one of them moves.
"""

# The inner part of the strategy with one device, which the host is: it has no public name.
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

# Whether a graph is traced to be compiled: XLA has no operation that calls a program of JAX.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# The class of variables that `tf.Variable` makes outside of scopes.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = ["GraphOrParentsInXlaContext", "OneDeviceExtended", "ResourceVariable"]
