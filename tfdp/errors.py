"""The errors that tfdp raises beyond Python's own.

Every message says what must hold, what was received and the exact fix.
"""

__all__ = [
    "ClusterError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "CorruptRecordError",
    "GradientError",
    "HookError",
    "PartitionError",
    "RankLostError",
    "RankMismatchError",
    "RecordIndexError",
    "ScopeError",
    "VerificationError",
]


class CollectiveMismatchError(RuntimeError):
    """Replicas do not issue the same sequence of collectives.

    A collective waits for every replica. If one replica issues another kind, dtype or shape, or
    one collective fewer, all would wait for ever; the difference is found while the step is traced.

    >>> import tensorflow as tf
    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> def step():
    ...     replica = tf.distribute.get_replica_context()
    ...     rank = tf.get_static_value(replica.replica_id_in_sync_group)
    ...     if int(rank) == 0:
    ...         replica.all_reduce("SUM", 1.0)
    >>> step_of_all = tf.function(lambda: strategy.run(step))
    >>> step_of_all()
    Traceback (most recent call last):
        ...
    tfdp.errors.CollectiveMismatchError: ... Every replica must issue the same collectives in the
    same order, but number 1 is all_reduce of float32 [] between ranks [0, 1] on replica 0 and
    missing on replica 1. ...
    """

    # AutoGraph raises an error anew, as its own class, only if it is made like this.
    __init__ = Exception.__init__


class ScopeError(RuntimeError):
    """A program uses an object in another scope than the one that it was made in.

    >>> import tfdp
    >>> one = tfdp.DataParallelStrategy(devices=["CPU:0"])
    >>> with one.scope(), tfdp.DataParallelStrategy(devices=["CPU:1"]).scope():
    ...     pass
    Traceback (most recent call last):
        ...
    tfdp.errors.ScopeError: Only one strategy's scope can be open at a time, but that of another
    DataParallelStrategy is. Leave it first, or build the model in one of them.
    """

    # AutoGraph needs it, see `CollectiveMismatchError`.
    __init__ = Exception.__init__


class GradientError(ValueError):
    """A program asks for, or uses, a gradient that is not that of the whole batch.

    A tape outside of a partitioned function differentiates through it; or a gradient would bypass
    a compression that computes the momentum. The message says what to write instead.

    >>> import tensorflow as tf, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> mean = strategy.partitioned(lambda x: tf.reduce_mean(x ** 2))
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     loss = mean(x)
    >>> tape.gradient(loss, x)
    Traceback (most recent call last):
        ...
    tfdp.errors.GradientError: A gradient must be taken inside of a partitioned function, ...
    """

    __init__ = Exception.__init__


class HookError(RuntimeError):
    """A hook into Keras or TensorFlow cannot be put in place, or cannot be taken back.

    Either the wrapped function is gone in the installed version, or the hook is still needed.

    >>> import tfdp
    >>> from tfdp.base import hooks
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0"])
    >>> hooks.remove()
    Traceback (most recent call last):
        ...
    tfdp.errors.HookError: Hooks can be taken back when no strategy is alive, but ...
    """

    __init__ = Exception.__init__


class PartitionError(ValueError):
    """A program of one device cannot be partitioned for replicas.

    The message names the operation and the line of the program that made it.

    >>> import tensorflow as tf
    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> @strategy.partitioned
    ... def step(x):
    ...     handle = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
    ...     return tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    >>> step(tf.range(4))
    Traceback (most recent call last):
    tfdp.errors.PartitionError: ... MutableHashTableV2 ...
    """

    # AutoGraph needs it, see `CollectiveMismatchError`.
    __init__ = Exception.__init__


class ClusterError(ValueError):
    """The description of the cluster lacks something or contradicts itself.

    The description comes from `TF_CONFIG`, MPI, Slurm or a cluster resolver. The message names the
    variable, its value and, where it is known, the rank.

    >>> import os
    >>> from unittest import mock
    >>> import tfdp
    >>> with mock.patch.dict(os.environ, TF_CONFIG="{"):
    ...     tfdp.DataParallelStrategy()
    Traceback (most recent call last):
        ...
    tfdp.errors.ClusterError: `TF_CONFIG` must be JSON, but is '{': ...
    """


class RankLostError(RuntimeError):
    """Another process of the cluster died, stopped or ended while this one needs it.

    Attributes:
      rank: The rank that is lost; None where the error was made anew from its text.

    Here one process plays the first of two ranks, and the connection to the other ends:

    >>> import asyncio, socket
    >>> from tfdp.cluster.control_channel import ControlChannel
    >>> from tfdp.cluster.connections import Connections
    >>> ours, theirs = socket.socketpair()
    >>> connections = Connections()
    >>> connections.streams[1] = connections.run(asyncio.open_connection(sock=ours))
    >>> board = ControlChannel(rank=0, world_size=2, connections=connections, timeout_seconds=60.0)
    >>> theirs.close()
    >>> board.all_gather("the loss")
    Traceback (most recent call last):
        ...
    tfdp.errors.RankLostError: Rank 0: lost rank 1: its connection broke ...
    """

    rank: int | None = None

    __init__ = Exception.__init__


class CollectiveTimeoutError(RuntimeError):
    """A rank did not take part in a collective, or did not answer a message, in time.

    Here one process plays the first of two ranks, and the other says nothing:

    >>> import asyncio, socket
    >>> from tfdp.cluster.control_channel import ControlChannel
    >>> from tfdp.cluster.connections import Connections
    >>> ours, theirs = socket.socketpair()
    >>> connections = Connections()
    >>> connections.streams[1] = connections.run(asyncio.open_connection(sock=ours))
    >>> board = ControlChannel(rank=0, world_size=2, connections=connections, timeout_seconds=0.1)
    >>> board.all_gather("the loss")
    Traceback (most recent call last):
        ...
    tfdp.errors.CollectiveTimeoutError: Rank 0: the loss must come from every rank within 0.1 s,
    but rank 1 did not send it. ...
    """

    __init__ = Exception.__init__


class RankMismatchError(RuntimeError):
    """A variable, an option, a version or the like differs between ranks, and must not.

    Here one process plays two ranks; the error of one of them ends the waits of both:

    >>> import asyncio, socket
    >>> from tfdp.cluster.control_channel import ControlChannel
    >>> from tfdp.cluster.connections import Connections
    >>> sockets, ends = socket.socketpair(), [Connections(), Connections()]
    >>> for rank, (end, own) in enumerate(zip(ends, sockets)):
    ...     end.streams[1 - rank] = end.run(asyncio.open_connection(sock=own))
    >>> first = ControlChannel(rank=0, world_size=2, connections=ends[0], timeout_seconds=60.0)
    >>> second = ControlChannel(rank=1, world_size=2, connections=ends[1], timeout_seconds=60.0)
    >>> second.fail(RankMismatchError("Rank 1: the seed is 2 here, and 1 on rank 0."))
    >>> first.all_gather("the loss")
    Traceback (most recent call last):
        ...
    tfdp.errors.RankMismatchError: Rank 1: the seed is 2 here, and 1 on rank 0.
    """

    __init__ = Exception.__init__


class CorruptRecordError(ValueError):
    """A record file is damaged. The message names the file and the byte.

    >>> import os, tempfile
    >>> import tensorflow as tf
    >>> from tfdp.data import sources
    >>> path = os.path.join(tempfile.mkdtemp(), "train.tfrecord")
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     writer.write(b"an example")
    >>> os.truncate(path, 20)  # as an interrupted copy leaves it
    >>> sources.TFRecordSource(path)
    Traceback (most recent call last):
        ...
    tfdp.errors.CorruptRecordError: A TFRecord file must be whole; in '...train.tfrecord', at byte
    0, a record begins that ends at byte 26; the file has 20. ...
    """

    __init__ = Exception.__init__


class RecordIndexError(ValueError):
    """The index beside a record file cannot be used: it is stale, damaged or of a newer tfdp.

    >>> import os, tempfile
    >>> import tensorflow as tf
    >>> from tfdp.tools.cli import main
    >>> from tfdp.data import sources
    >>> path = os.path.join(tempfile.mkdtemp(), "train.tfrecord")
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     writer.write(b"an example")
    >>> main(["data", "index", path])
    /...train.tfrecord: 1 records indexed
    0
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     writer.write(b"another one, longer")
    >>> sources.TFRecordSource(path)
    Traceback (most recent call last):
        ...
    tfdp.errors.RecordIndexError: The index '...train.tfrecord.tfdp-index' must fit its record
    file, but it is of a file of 26 bytes, and the file has 35. ...
    """

    __init__ = Exception.__init__


class VerificationError(AssertionError):
    """A program does not train under a strategy as on one device; the message is the report.

    >>> import keras, numpy as np, tensorflow as tf, tfdp
    >>> def build():
    ...     rate = 0.1 * tf.distribute.get_strategy().num_replicas_in_sync
    ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    ...     model.compile(keras.optimizers.SGD(rate), "mse")
    ...     return model
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> batches = [(np.random.rand(5, 4), np.random.rand(5, 1))]
    >>> tfdp.verify(build, batches, strategy=strategy).check()
    Traceback (most recent call last):
        ...
    tfdp.errors.VerificationError:
    On 2 replicas the program does not train as on one device: optimizer state
    ... parts first, before the first step. ...
    """
