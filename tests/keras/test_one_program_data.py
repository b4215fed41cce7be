"""Data of every kind, fed to Keras' steps as one program, give what one device gives."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

import tfdp

pytestmark = pytest.mark.slow

X, Y = harness.regression_data(14)


# ---- what `predict` gives


class Outputs(keras.Model):
    """A model that gives a function of its Dense layer's output, of its kernel and of the input."""

    def __init__(self, function):
        super().__init__()
        self.dense, self.function = layers.Dense(3), function

    def call(self, x):
        return self.function(self.dense(x), x, self.dense.kernel)


def ragged(p, x, kernel):
    lengths = tf.cast(x[:, 0] > 0, tf.int64) + tf.cast(x[:, 1] > 0, tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.repeat(p, lengths, axis=0), lengths)


# Batches of these can be joined on one device, those of one execution too but for scalars.
JOINED = {
    "several": lambda p, x, kernel: {"a": p, "b": ops.square(p), "c": ops.sum(p, axis=1)},
    "texts": lambda p, x, kernel: tf.strings.as_string(x),
    "ragged": ragged,
    "kernel": lambda p, x, kernel: kernel + 0.0 * ops.mean(x),
    "two rows an example": lambda p, x, kernel: ops.concatenate([p, p], axis=0),
    "as long as a share": lambda p, x, kernel: ops.reshape(ops.mean(p, axis=0), (3, 1)),
}
OF_ONE_BATCH = {"time-major": lambda p, x, kernel: ops.swapaxes(ops.stack([p, p], axis=1), 0, 1)}


@pytest.mark.telling
@pytest.mark.parametrize("steps", tiers.first_of(1, 3))
def test_predict_gives_one_devices_outputs_of_any_kind(steps, replicas):
    scalar = {} if steps > 1 else {"scalar": lambda p, x, kernel: ops.sum(p)}

    def of(functions):
        return lambda *given: {name: function(*given) for name, function in functions.items()}

    for functions, size in ((JOINED | scalar, 4), (OF_ONE_BATCH, 14)):
        seen = []
        for count in (None, replicas):
            model = harness.build_in_scope(lambda: Outputs(of(functions)), count)  # noqa: B023
            model.compile(steps_per_execution=steps)
            seen.append(model.predict(X, batch_size=size, verbose=0))
        for name in functions:
            for one, many in zip(*(tf.nest.flatten(each[name]) for each in seen), strict=True):
                assert type(many) is type(one), name
                if isinstance(one, tf.RaggedTensor):
                    assert many.row_splits.numpy().tolist() == one.row_splits.numpy().tolist()
                    one, many = one.flat_values, many.flat_values
                if np.asarray(one).dtype == object:
                    assert np.asarray(many).tolist() == np.asarray(one).tolist(), name
                else:
                    np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-6, err_msg=name)


def test_predict_is_not_traced_again_for_the_short_last_batch(replicas):
    traced = []

    def function(p, x, kernel):
        traced.append(x.shape)
        return p

    model = harness.build_in_scope(lambda: Outputs(function), replicas)
    model.predict(X[:4], batch_size=4, verbose=0)
    before = len(traced)
    assert len(model.predict(X, batch_size=4, verbose=0)) == 14
    assert len(traced) == before


# ---- datasets that each process makes by itself

# The sizes of batches of the first pipeline, and of each other one: its data end before.
SIZES = [[3, 1, 4, 2, 2], [2, 5]]


def chunks(pipeline):
    """The batches of a pipeline, each with examples of its own."""
    rng = np.random.default_rng(pipeline)
    for size in SIZES[min(pipeline, 1)]:
        x = rng.normal(size=(size, 5)).astype("float32")
        yield x, x.sum(1, keepdims=True)


# A replica that has no example does not know how many features the others' have.
SIGNATURE = (tf.TensorSpec((None, None)), tf.TensorSpec((None, 1)))


def of_pipeline(context):
    make = lambda: chunks(context.input_pipeline_id)  # noqa: E731
    return tf.data.Dataset.from_generator(make, output_signature=SIGNATURE)


def rounds(replicas):
    """The global batches: those that replicas read at the same time, in the order of replicas."""
    local = 1 if harness.CLUSTER_REPLICAS else replicas
    every = [list(chunks(pipeline)) for pipeline in range(replicas // local)]
    for begin in range(0, len(SIZES[0]), local):
        batch = [each for own in every for each in own[begin : begin + local]]
        yield tuple(np.concatenate(leaf) for leaf in zip(*batch, strict=True))


def refusing():
    """A model that cannot do without an example, and takes no zeros for one."""

    def logs(x):
        sums = ops.sum(ops.square(x), axis=1, keepdims=True)
        found = tf.debugging.assert_positive(sums)
        with tf.control_dependencies([found] if found is not None else []):
            return ops.log(sums)

    inputs = keras.Input((5,))
    hidden = layers.Concatenate()([inputs, layers.Lambda(logs)(inputs)])
    hidden = layers.BatchNormalization()(layers.Dense(4)(hidden))
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
    return model


@pytest.mark.telling
@pytest.mark.parametrize("steps", tiers.first_of(2, 1))
def test_datasets_of_each_process_are_shares_of_one_batch(steps, replicas):
    def build():
        model = refusing()
        model.steps_per_execution = steps
        return model

    def used(model, batches):
        seen = {"fit": model.fit(batches, epochs=2, verbose=0, validation_data=batches).history}
        seen["evaluate"] = model.evaluate(batches, verbose=0, return_dict=True)
        return seen | {"predict": model.predict(batches, verbose=0)}

    def of_processes(model):
        strategy = model.distribute_strategy
        return used(model, strategy.distribute_datasets_from_function(of_pipeline))

    def whole(model):
        return used(
            model,
            tf.data.Dataset.from_generator(lambda: rounds(replicas), output_signature=SIGNATURE),
        )

    # What a step does before it finds no batch is in its graph alone.
    one = harness.trained_once(build, whole, one_device_eagerly=False)
    harness.assert_same_outcome(harness.train(build, of_processes, replicas), one)


# ---- data of which only their iterator knows the end


def test_the_end_of_batches_of_known_sizes_is_counted_once(trains_as_one_device):
    """Their program is called directly: it alone waits for a batch."""

    def use(model):
        signature = (tf.TensorSpec((4, 5)), tf.TensorSpec((4, 1)))
        batches = [(X[at : at + 4], Y[at : at + 4]) for at in (0, 4, 8)]
        for counted in (4, 8):  # on one device the number of examples is counted in the losses, too
            data = tf.data.Dataset.from_generator(
                lambda counted=counted: harness.ends_late(model, batches, counted),
                output_signature=signature,
            )
            model.fit(data, verbose=0)

    trains_as_one_device(harness.dense_model, use, one_device_eagerly=False)


# ---- elements that are no batches


class OfNumbers(keras.Model):
    """A model whose steps take a number each."""

    def __init__(self):
        super().__init__()
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, number):
        return self.factor * ops.cast(number, "float32")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = (self(data) - 3.0) ** 2
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}

    def test_step(self, data):
        return {"output": self(data)}

    def predict_step(self, data):
        return self(data)


@pytest.mark.parametrize("steps", tiers.first_of(2, 1))
def test_elements_that_are_no_batches_are_whole_on_all_replicas(steps, trains_as_one_device):
    def build():
        model = OfNumbers()
        model.compile(keras.optimizers.SGD(0.01), steps_per_execution=steps)
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        return model

    def use(model):
        numbers = tf.data.Dataset.range(1, 8)
        seen = {"fit": model.fit(numbers, epochs=2, verbose=0).history}
        seen["evaluate"] = model.evaluate(numbers, verbose=0, return_dict=True)
        if steps == 1:  # on one device Keras cannot join numbers of several steps
            seen["predict"] = model.predict(numbers, verbose=0)
        return seen

    trains_as_one_device(build, use)


# ---- ranks whose data are not the same

in_cluster = pytest.mark.skipif(
    not harness.CLUSTER_REPLICAS, reason="it is about several processes"
)


def rank_and_size():
    processes = harness.strategy(None).extended.processes
    return processes.rank, processes.world_size


def sharded():
    rank, size = rank_and_size()
    return tf.data.Dataset.from_tensor_slices((X, Y)).shard(size, rank).batch(4)


def shuffled():
    rank, _ = rank_and_size()
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(14, seed=rank).batch(4)


def of_other_texts():
    rank, _ = rank_and_size()
    texts = tf.strings.as_string(np.arange(14) + 100 * rank)
    return tf.data.Dataset.from_tensor_slices(({"words": texts, "x": X}, Y)).batch(4)


def generated():
    rank, _ = rank_and_size()
    signature = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))
    make = lambda: ((X[at : at + 4] + rank, Y[at : at + 4]) for at in (0, 4))  # noqa: E731
    return tf.data.Dataset.from_generator(make, output_signature=signature)


def shorter():
    rank, size = rank_and_size()
    sizes = (6, 4, 4) if rank < size - 1 else (6, 3, 5)
    return harness.batches_of(sizes, X, Y).filter(lambda *batch: True)


DIFFERENT = {
    "shards of the data": (sharded, "first or last rows of x in one are others on rank 1"),
    "another shuffle": (shuffled, "first or last rows of x in one"),
    "other texts": (
        of_other_texts,
        "rows of x/words in one.* `strategy.distribute_datasets_from_f",
    ),
    "a generator of its own": (generated, "one seed for what shuffles, draws or generates"),
    "other numbers of examples": (shorter, "4 on rank 0 and 3 on rank 1"),
}


class OfX(keras.Model):
    """A model of a batch's `x`, or of what is under this name in it."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        rows = inputs["x"] if isinstance(inputs, dict) else inputs
        # What needs the whole batch: collectives of other sizes would wait for each other.
        return self.dense(rows) + ops.sort(rows, axis=0)[:1, :1]


@in_cluster
@pytest.mark.telling
@pytest.mark.parametrize("steps", tiers.first_of(1, 2))
@pytest.mark.parametrize(
    "data",
    tiers.cases(DIFFERENT, {"shards of the data", "other texts", "other numbers of examples"}),
)
def test_ranks_that_feed_different_batches_are_named(data, steps, replicas):
    make, words = DIFFERENT[data]

    def build():
        model = OfX()
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = harness.build_in_scope(build, replicas)
    for use in (model.fit, model.evaluate):
        with pytest.raises(tfdp.errors.RankMismatchError, match=words):
            use(make(), verbose=0)
    # It was found by all of them together: all go on.
    model.fit(X, Y, batch_size=6, verbose=0)


@in_cluster
def test_ranks_that_train_on_different_single_batches_are_named(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    rank, _ = rank_and_size()
    with pytest.raises(tfdp.errors.RankMismatchError, match="rows of y in one are others on rank"):
        model.train_on_batch(X, Y + rank)
    with pytest.raises(tfdp.errors.RankMismatchError, match="14 on rank 0 and 13 on rank 1"):
        model.test_on_batch(X[rank:], Y[rank:])
    model.train_on_batch(X, Y)
