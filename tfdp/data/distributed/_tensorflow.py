"""The private TensorFlow names that distributed datasets use, each with its reason.

Tested with TensorFlow 2.19-2.21. `tests/strategy/test_tensorflow.py` fails when one of them moves.
"""

# Computes the batch size that a dataset declares where its `element_spec` does not show it.
from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

# Makes the iterators that fetch the shares of each device.
from tensorflow.python.data.ops import multi_device_iterator_ops

# Counts the replicas that have a value left: it sums what each process counts.
from tensorflow.python.distribute import input_lib

# Puts together the values of one process' replicas.
from tensorflow.python.distribute.distribute_utils import regroup

# TensorFlow's iterator over the replicas' shares and its dataset, extended by `shard_iterator`
# and `shard_dataset`.
from tensorflow.python.distribute.input_lib import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
)

# The first gives a dataset's elements to the replicas in turn, without cutting them up again; the
# second makes one dataset for each process, by a function.
from tensorflow.python.distribute.input_util import (
    get_distributed_dataset,
    get_distributed_datasets_from_function,
)

# The public `StrategyExtended` lacks what TensorFlow calls to distribute datasets.
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

__all__ = [
    "DistributedDataset",
    "DistributedDatasetSpec",
    "DistributedIterator",
    "DistributedIteratorSpec",
    "MirroredExtended",
    "compute_batch_size",
    "get_distributed_dataset",
    "get_distributed_datasets_from_function",
    "input_lib",
    "multi_device_iterator_ops",
    "regroup",
]
