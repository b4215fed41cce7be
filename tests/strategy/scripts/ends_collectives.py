"""A gather fails on two replicas, and then others begin."""

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import split

gather = tf.raw_ops.CollectiveGatherV2
# Of a group that has two members TensorFlow refuses it.
tf.raw_ops.CollectiveGatherV2 = lambda group_size, **options: gather(group_size=3, **options)
strategy = tfdp.DataParallelStrategy(devices=split(2, "CPU"))
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


@strategy.partitioned
def distinct(tokens):
    return tf.unique(tokens)[0]  # gathers


def summed():
    return tf.distribute.get_replica_context().all_reduce("SUM", 1.0)


def tried(function):
    try:
        print("RESULT", function())
    except tf.errors.OpError as error:
        print("ERROR", type(error).__name__, error.message.replace("\n", " "), flush=True)


tried(lambda: strategy.run(tf.function(summed)).values[1].numpy())
tried(lambda: distinct(tf.constant([3, 3, 1, 7])))
tried(lambda: model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0))
tried(lambda: strategy.run(tf.function(summed)))
alone = tfdp.DataParallelStrategy(devices=["CPU:0"])
tried(lambda: alone.partitioned(tf.reduce_sum)(tf.constant([1.0, 2.0])).numpy())
