"""Steps of models whose operations a GPU must have, traced as on GPUs: see `gpu_placing`."""

import functools

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.communication.replicas import batch_shard, checksums
from tfdp.partition.finish import registration
from tfdp.strategy.programs import reduction_order, replica_rows

layers = keras.layers
LENGTHS = {"even": 16, "uneven": 15}
REPLICAS = 2


def mlp():
    hidden = [layers.Dense(16, activation="relu"), layers.Dropout(0.3, seed=1)]
    return keras.Sequential([keras.Input((20,)), *hidden, layers.Dense(3)])


def cnn():
    hidden = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU()]
    inputs = keras.Input((8, 8, 3))
    return keras.Sequential(
        [inputs, *hidden, layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)]
    )


def embedding():
    inputs = keras.Input((6,), dtype="int32")
    hidden = [layers.Embedding(5000, 8), layers.GlobalAveragePooling1D()]
    return keras.Sequential([inputs, *hidden, layers.Dense(3)])


def transformer():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(50, 8, mask_zero=True)(inputs)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=3)(x, x)
    x = layers.LayerNormalization()(x + layers.Dropout(0.1, seed=2)(attended))
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    x = layers.LayerNormalization()(x + layers.Dropout(0.1, seed=4)(y))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def lstm():
    return keras.Sequential([keras.Input((6, 4)), layers.LSTM(5), layers.Dense(3)])


MODELS = {each.__name__: each for each in (mlp, cnn, embedding, transformer, lstm)}


def as_on_gpus(monkeypatch):
    """Takes the first logical CPU for the host, and all others for GPUs."""

    def host_of(device):
        return tf.DeviceSpec.from_string(device).replace(device_index=0).to_string()

    monkeypatch.setattr(registration, "host_of", host_of)
    monkeypatch.setattr(replica_rows, "host_of", host_of)
    monkeypatch.setattr(batch_shard, "need_shapes", lambda devices: True)
    monkeypatch.setattr(reduction_order, "is_any", lambda devices: True)


def traced(name, length, replicas, optimizer=keras.optimizers.Adam, make=tfdp.DataParallelStrategy):
    """A training step of a model on batches of a length, and what must live as long.

    `replicas` None: on one device. `make` makes the strategy of several.
    """
    if replicas is None:
        strategy = tf.distribute.OneDeviceStrategy("CPU:1")
    else:
        strategy = make([f"CPU:{each + 1}" for each in range(replicas)])
    keras.utils.clear_session(free_memory=False)
    with strategy.scope():
        model = MODELS[name]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"], jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        model._compile_metrics.build(tf.zeros(2, "int32"), tf.zeros([2, 3]))
    (inputs,) = model.inputs
    x = np.ones([64, *inputs.shape[1:]], inputs.dtype)
    batches = tf.data.Dataset.from_tensor_slices((x, np.zeros(64, "int32")))
    # Only the last batch of 15 is another one; that of 16 declares its length.
    batches = batches.batch(length, drop_remainder=64 % length == 0)
    iterator = iter(strategy.experimental_distribute_dataset(batches))

    if isinstance(strategy, tfdp.DataParallelStrategy):
        iterator = strategy.extended.shards(iterator)
        run = strategy.partitioned(model.train_step).on_shares
    else:
        run = functools.partial(_run_as_it_is, strategy, model.train_step)

    @tf.function(autograph=False)
    def step(iterator):
        return run(next(iterator))

    return step.get_concrete_function(iterator), (step, model, iterator)


def _run_as_it_is(strategy, step, batch):
    return strategy.run(step, args=(batch,))


def traced_checksum():
    """The checksum of a tensor of more than two blocks."""

    @tf.function(autograph=False)
    def of_blocks(tensor):
        with tf.device("CPU:1"):
            return checksums.of_tensor(tensor)

    size = 2 * checksums.BLOCK + 7
    return of_blocks.get_concrete_function(tf.TensorSpec([size], "float32"))
