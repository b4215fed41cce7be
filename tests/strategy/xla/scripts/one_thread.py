"""Runs a loop in a graph with one thread for TensorFlow's operations, and prints what it makes."""

import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)

import tfdp  # noqa: E402

strategy = tfdp.XLAStrategy()
with strategy.scope():
    total = tf.Variable(0.0)


@tf.function
def train(data):
    seen = 0.0
    for x in data.prefetch(2):
        seen += strategy.run(lambda x: total.assign_add(tf.reduce_sum(x)), args=(x,))
        strategy.run(lambda: total.assign_add(1.0))
    return seen, total + 0.0


batches = tf.data.Dataset.from_tensor_slices(tf.range(12.0)).batch(4)
print([float(each) for each in train(batches)])
