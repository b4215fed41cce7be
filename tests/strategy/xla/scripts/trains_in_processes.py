"""Trains in one of several processes: ADDRESS PROCESSES NUMBER DATA SHARD FILE."""

import sys

import jax

address, processes, number, kind, shard, file = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
if int(processes) > 1:
    jax.distributed.initialize(address, int(processes), int(number))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402

if kind != "unseeded":
    keras.utils.set_random_seed(1)
options = {"shard": None if shard == "None" else shard}
if "mesh" in kind and int(processes) > 1:
    options["mesh"] = {"batch": jax.device_count() // 2, "model": 2}
    if kind == "mesh of columns":
        options["mesh"] = {"batch": 1, "model": jax.device_count()}
    layouts = {"tanh/kernel": (None, "model"), "tanh/bias": ("model",), "top/k": ("model", None)}
    options["layout_map"] = layouts
strategy = tfdp.XLAStrategy(**options)
if kind == "unseeded":
    keras.utils.set_random_seed(1 + int(number))  # the weights are the first process'
with strategy.scope():
    first = [keras.Input([16])]
    if kind == "strings":
        texts = keras.layers.TextVectorization(output_sequence_length=16)
        texts.set_vocabulary([f"w{number}" for number in range(40)])
        first = [keras.Input([1], dtype="string"), texts, keras.layers.Rescaling(0.05)]
    model = keras.Sequential(
        [
            *first,
            keras.layers.Dense(512, activation="tanh", name="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(130, name="top"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=2,
    )
if kind == "unseeded":
    keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=[76, 16]).astype("float32"), rng.integers(0, 10, [76])
if kind == "strings":
    words = [[f"w{word}" for word in row] for row in rng.integers(0, 50, [76, 16])]
    x = np.array([[" ".join(row)] for row in words], object)
batches = None
if "pipeline" in kind or kind == "strings":
    batches = tfdp.data.pipeline((x, y), 30, seed=1)
if kind == "unlike batches":
    batches = tf.data.Dataset.from_tensor_slices((x + np.float32(number), y)).batch(30)
epochs = 2 + int(number) if kind == "unlike epochs" else 2
history = (
    model.fit(batches, epochs=epochs, verbose=0)
    if batches is not None
    else model.fit(x, y, batch_size=30, epochs=epochs, verbose=0)
)
x = tf.constant(x)
predicted = model.predict(x, batch_size=30, verbose=0)
copies = [
    np.array_equal(copy.data, array.addressable_shards[0].data)
    for array in (variable.value._array for variable in model.variables)
    if array is not None and array.is_fully_replicated
    for copy in array.addressable_shards
]
assert copies and all(copies)
evaluated = model.evaluate(x, y, batch_size=30, verbose=0)
every = [*model.variables, *model.optimizer.variables]
arrays = {f"{index}": variable.numpy() for index, variable in enumerate(every)}
np.savez(file, predicted=predicted, evaluated=evaluated, losses=history.history["loss"], **arrays)
