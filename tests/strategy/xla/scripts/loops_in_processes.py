"""Trains in loops of its own in one of several processes: ADDRESS PROCESSES NUMBER FILE."""

import sys

import jax

address, processes, number, file = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
if int(processes) > 1:
    jax.distributed.initialize(address, int(processes), int(number))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402

keras.utils.set_random_seed(1)
strategy = tfdp.XLAStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input([6]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    other = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
    optimizer, others = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=[38, 6]).astype("float32"), rng.normal(size=[38, 1]).astype("float32")


def update(trained, its_optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.nn.compute_average_loss(tf.square(trained(x) - y)[:, 0])
    gradients = tape.gradient(loss, trained.trainable_variables)
    its_optimizer.apply(gradients, trained.trainable_variables)
    return loss


def step(x, y):
    return update(model, optimizer, x, y)


def step_of_other(x, y):
    return update(other, others, x, y)


@tf.function
def epoch(batches):
    losses = 0.0
    for x, y in batches:  # two programs that do not wait for each other's values
        losses += strategy.run(step, args=(x, y))
        losses += strategy.run(step_of_other, args=(x, y))
    return losses


losses = []
pipeline = tfdp.data.pipeline((x, y), 16, seed=1)
for batch in strategy.experimental_distribute_dataset(pipeline):
    losses.append(strategy.run(step, args=batch))
    one, two = batch
    losses.append(strategy.run(step_of_other, (one,), {"y": two}))
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
losses += [epoch(strategy.experimental_distribute_dataset(batches)) for _ in range(2)]
every = [*model.variables, *other.variables, *optimizer.variables, *others.variables]
arrays = {f"{index}": variable.numpy() for index, variable in enumerate(every)}
np.savez(file, losses=np.array(losses), **arrays)
