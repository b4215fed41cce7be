"""What ranks that train apart do, asserted on every rank.

Not collected by itself: `test_asynchronous.py` runs it in every process of a cluster.
"""

import collections
import csv
import itertools
import json
import os
import pathlib

import asynchronous_replay
import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.base import sharding
from tfdp.keras.nested_optimizers import innermost
from tfdp.keras.optimizer import optimizer_hooks, update_protocol
from tfdp.keras.optimizer.asynchronous_updates import _check_alone
from tfdp.synchronization import Asynchronous

FOLDER = pathlib.Path(os.environ.get("TFDP_TESTS_FOLDER", "."))
EVERY, RATE, MOMENTUM = 3, 0.7, 0.3
EXAMPLES, BATCH = 70, 8


@pytest.fixture(scope="module")
def strategy():
    """The strategy, of which a process of a cluster can make one."""
    made = tfdp.DataParallelStrategy(
        [f"CPU:{device}" for device in range(int(os.environ["TFDP_TESTS_DEVICES"]))],
        synchronization=Asynchronous(EVERY, 2, RATE, MOMENTUM),
        timeout_seconds=200,
    )
    homes = made.extended.processes.homes
    homes.record()
    homes.wait_for_all("the records")
    return made


@pytest.fixture
def homes(strategy):
    return strategy.extended.processes.homes


@pytest.fixture
def taken(strategy, monkeypatch):
    """The parts that this rank has taken, by pass."""
    turns, found = strategy.extended.processes.turns, collections.defaultdict(list)
    dataset = turns.dataset

    def recorded():
        turn = dataset()

        def noted(number, *others):
            found[number].append(turn(number, *others))
            return found[number][-1]

        return noted

    monkeypatch.setattr(turns, "dataset", recorded)
    return found


def of_all_ranks(strategy, name, value):
    """What each rank says, by rank."""
    path = FOLDER / f"{name} {strategy.rank}"
    path.write_text(json.dumps(value))
    strategy.extended.processes.homes.wait_for_all(name)
    return [
        json.loads((FOLDER / f"{name} {rank}").read_text()) for rank in range(strategy.world_size)
    ]


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def flat(weights):
    return np.concatenate([np.ravel(each) for each in weights])


def parts_of(x, y, ranks):
    """The parts of all batches, in order."""
    found = []
    for start in range(0, len(x), BATCH):
        rows = [array[start : start + BATCH] for array in (x, y)]
        ends = np.cumsum(sharding.share_sizes(len(rows[0]), ranks))
        for a, b in zip([0, *ends[:-1]], ends, strict=True):
            if b > a:
                found.append([array[a:b] for array in rows])
    return found


def dense():
    return harness.dense_model(keras.optimizers.Adam(0.02), metrics=())


def model_of(strategy):
    harness.start_over(seed=strategy.rank)  # each begins otherwise, and goes on from rank 0's
    with strategy.scope():
        return dense()


def homes_of(strategy, model):
    name = vars(model.optimizer)["tfdp_vector"]
    return strategy.extended.processes.homes.staleness(name)


def mixed():
    """Rows of a table, statistics, and a layer that is not trained, under a loss scale."""
    layers = [
        keras.Input((5,)),
        keras.layers.Embedding(7, 3),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(6, "tanh", trainable=False),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02)), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def numbered(x):
    """Whole numbers below 7 in place of values."""
    return np.int32(np.abs(10 * x)) % 7


# Each rank begins with weights of its own, and goes on from rank 0's; what is not trained is alike.
SEEDS = {dense: lambda rank: rank, mixed: lambda rank: 0}


def vector_of(model):
    return vars(innermost(model.optimizer)[0])["tfdp_vector"]


def trainable(model):
    return flat([each.numpy() for each in model.trainable_variables])


def test_a_model_that_was_built_outside_the_scope_is_said_to_train_alone(strategy, caplog):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    assert strategy.num_replicas_in_sync == int(os.environ["TFDP_TESTS_DEVICES"])
    assert "each rank trains it alone" in caplog.text


@pytest.mark.parametrize(("make", "change"), [(dense, np.copy), (mixed, numbered)])
def test_training_is_that_of_one_device_in_the_order_of_arrivals(
    strategy, homes, taken, make, change
):
    """Two trainings, of which the second goes on from the first, and an evaluation in between."""
    x, y = harness.regression_data(EXAMPLES)
    x, ranks = change(x), strategy.world_size
    harness.start_over(seed=SEEDS[make](strategy.rank))
    with strategy.scope():
        model = make()
    fixed = [each.numpy() for each in model.layers[-2].variables]
    mine, parts = [], parts_of(x, y, ranks)
    for epochs in 2, 1:
        taken.clear()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
        model.evaluate(x, y, batch_size=BATCH, verbose=0)
        model.predict(x, batch_size=BATCH, verbose=0)
        mine.append(
            [[each for each in taken[epoch] if each < len(parts)] for epoch in range(epochs)]
        )
    events, ends = homes.events(vector_of(model)), trainable(model)
    updates = int(innermost(model.optimizer)[0].iterations)
    told = of_all_ranks(strategy, f"taken by {make.__name__}", [mine, ends.tolist(), updates])
    for fits in zip(*(each[0] for each in told), strict=True):
        for passes in zip(*fits, strict=True):
            assert sorted(joined(passes)) == list(range(len(parts)))
    for each, other, count in told:
        assert other == ends.tolist()
        assert count == sum(len(passed) for fitted in each for passed in fitted)

    if make is mixed:
        for each, before in zip(model.layers[-2].variables, fixed, strict=True):
            np.testing.assert_array_equal(each.numpy(), before)
    if strategy.rank:  # one replay serves all, which have the same weights
        return

    workers, batches = [], []
    for each, _, _ in told:
        harness.start_over(seed=SEEDS[make](0))
        workers.append(make())
        of_fits = [[*(parts[part] for part in joined(fitted)), None] for fitted in each]
        batches.append(iter(joined(of_fits)))
    first = trainable(workers[0])

    def trained(rank, number, weights):
        worker, place = workers[rank], 0
        for variable in worker.trainable_variables:
            count = int(np.prod(variable.shape))
            variable.assign(weights[place : place + count].reshape(variable.shape))
            place += count
        for batch in batches[rank]:
            if batch is None:  # the end of a training is that of a round
                break
            worker.train_on_batch(*batch)
            if int(innermost(worker.optimizer)[0].iterations) % EVERY == 0:
                break
        return trainable(worker)

    expected = asynchronous_replay.replay(events, first, trained, ranks, RATE, MOMENTUM)
    harness.assert_close_arrays([ends], [expected], 1e-5, "weights")


class Two(keras.Model):
    """Two optimizers move weights by 0.01 and 0.04 an update; `compile` makes one more, unused."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (self.add_weight(shape=(7,), name=name) for name in ("a", "b"))
        self.of_one, self.of_other = keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.02)

    def call(self, x):
        return x

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.one) + 2 * tf.reduce_sum(self.other)
        first, second = tape.gradient(loss, [self.one, self.other])
        self.of_one.apply([first], [self.one])
        self.of_other.apply([second], [self.other])
        return {"loss": loss}


def test_a_rank_that_stops_early_waits_for_the_others_with_each_of_its_optimizers(strategy, homes):
    class StopsAtOnce(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = strategy.rank == 0

    x, y = harness.regression_data(6 * EVERY * BATCH)
    harness.start_over(seed=0)
    with strategy.scope():
        model = Two()
        model(x[:1])
        model.compile()
    first = [each.numpy() for each in (model.one, model.other)]
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[StopsAtOnce()])
    updates = of_all_ranks(strategy, "updates of two", int(model.of_one.iterations))
    assert updates[0] == 1 and sum(updates[1:]) > 3 * EVERY  # more rounds than the bound
    assert homes.alive() == list(range(strategy.world_size))
    for optimizer, variable, begins, moves in (
        (model.of_one, model.one, first[0], 0.01),
        (model.of_other, model.other, first[1], 0.04),
    ):

        def trained(rank, number, weights, moves=moves):
            return weights - moves * min(EVERY, updates[rank] - EVERY * (number - 1))

        events = homes.events(vars(optimizer)["tfdp_vector"])
        expected = asynchronous_replay.replay(
            events, begins, trained, strategy.world_size, RATE, MOMENTUM
        )
        harness.assert_close_arrays([variable.numpy()], [expected], 1e-5, "weights")


@pytest.mark.parametrize("trains", [True, False])
def test_ranks_without_a_part_and_models_without_trainable_weights(strategy, trains):
    x, y = harness.regression_data(1)
    harness.start_over(seed=0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, trainable=trains)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    before = trainable(model) if trains else None
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    every = of_all_ranks(strategy, f"weights {trains}", flat(model.get_weights()).tolist())
    assert all(each == every[0] for each in every)
    assert before is None or np.any(trainable(model) != before)


def test_all_ranks_evaluate_all_examples_alike_and_rank_0_alone_writes_files(strategy, taken):
    x, y = harness.regression_data(EXAMPLES)
    model = model_of(strategy)
    path, log = FOLDER / f"of {strategy.rank}.keras", FOLDER / f"of {strategy.rank}.csv"
    callbacks = [keras.callbacks.ModelCheckpoint(path), keras.callbacks.CSVLogger(log)]
    callbacks.append(tfdp.callbacks.Telemetry(FOLDER / "logs", tensorboard=False))
    told = model.fit(
        x, y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(x, y), callbacks=callbacks
    )
    assert all(np.isfinite(told.history[name]).all() for name in ("loss", "val_loss"))
    loss = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    assert loss == pytest.approx(float(np.mean((model.predict(x, verbose=0) - y) ** 2)), rel=1e-5)
    assert len(set(of_all_ranks(strategy, "losses", loss))) == 1
    assert path.exists() == log.exists() == (strategy.rank == 0)
    if strategy.rank == 0:
        assert len(list(csv.DictReader(log.open()))) == 2
    lines = (FOLDER / "logs" / f"rank{strategy.rank}.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert found[0]["rank"] == strategy.rank and found[0]["world_size"] == strategy.world_size
    late = [line["staleness"] for line in found if line["kind"] == "epoch" and "staleness" in line]
    assert 0 < sum(sum(each.values()) for each in late) <= sum(homes_of(strategy, model).values())
    parts = parts_of(x, y, strategy.world_size)
    mine = [each for each in taken[0] if each < len(parts)]
    every = joined(of_all_ranks(strategy, "parts", mine))
    assert sorted(every) == list(range(len(parts)))


@pytest.mark.parametrize("executes", [1, 3])
def test_shuffled_examples_come_once_an_epoch(strategy, taken, executes):
    numbers = np.arange(64.0, dtype="float32")[:, None]

    def number(y, outputs):
        return y[:, 0]

    def square(y, outputs):
        return y[:, 0] ** 2

    harness.start_over(seed=strategy.rank)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(0.0), "mse", metrics=[number, square], steps_per_execution=executes
        )
    told = model.fit(numbers, numbers, batch_size=BATCH, epochs=2, shuffle=True, verbose=0)
    rows = BATCH // strategy.world_size
    for epoch in range(2):
        count = rows * sum(each < 64 // rows for each in taken[epoch])
        sums = [count * told.history[name][epoch] for name in ("number", "square")]
        every = of_all_ranks(strategy, f"sums of epoch {epoch} by {executes}", sums)
        assert np.sum(every, 0) == pytest.approx([numbers.sum(), (numbers**2).sum()], rel=1e-5)


def test_moving_statistics_are_the_mean_of_those_of_all_ranks(strategy):
    x, y = harness.regression_data(EXAMPLES)
    found = {}

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found["own"] = [each.numpy().tolist() for each in self.model.non_trainable_variables]

    harness.start_over(seed=strategy.rank)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((5,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[Own()])
    every = of_all_ranks(strategy, "statistics", found["own"])
    assert any(other != every[0] for other in every)
    for variable, *own in zip(model.non_trainable_variables, *every, strict=True):
        np.testing.assert_allclose(variable.numpy(), np.mean(own, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("checkpoint", r"Checkpoint keeps the place of all ranks.*ModelCheckpoint"),
        ("pipeline", r"take parts of batches in turn.*Give `fit` arrays or such a dataset"),
        ("numbers", r"take parts of batches in turn"),
        ("best", r"EarlyStopping\(restore_best_weights=True\) would end .*save_best_only"),
        ("distributed", r"must be given the dataset itself, .*Leave out `strategy.experimental_di"),
    ],
)
def test_what_ranks_that_train_apart_cannot_do_is_refused(strategy, what, text):
    x, y = harness.regression_data(16)
    given = {
        "checkpoint": {
            "x": x,
            "y": y,
            "callbacks": [tfdp.callbacks.Checkpoint(FOLDER, every_epochs=1)],
        },
        "best": {
            "x": x,
            "y": y,
            "callbacks": [keras.callbacks.EarlyStopping("loss", restore_best_weights=True)],
        },
        "pipeline": {"x": tfdp.data.pipeline((x, y), global_batch_size=4, seed=0)},
        "numbers": {"x": tf.data.Dataset.range(4)},
        "distributed": {
            "x": strategy.experimental_distribute_dataset(
                tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
            )
        },
    }
    with pytest.raises(ValueError, match=text):
        model_of(strategy).fit(**given[what], verbose=0)


@pytest.mark.parametrize("how", ["loaded", "set"])
def test_weights_that_are_set_before_the_first_update_are_what_ranks_begin_with(strategy, how):
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over(seed=0)
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.SGD(0.0), metrics=())
        model.optimizer.build(model.trainable_variables)
        model.set_weights([each + 7 for each in model.get_weights()])
        if how == "loaded":
            model.save(FOLDER / "set.keras")
            strategy.extended.processes.homes.wait_for_all("the file")
            model = keras.models.load_model(FOLDER / "set.keras")
    expected, seen = trainable(model), []

    class Sees(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(trainable(self.model))

    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Sees()])
    for each in (*seen, trainable(model)):
        np.testing.assert_array_equal(each, expected)


def test_weights_that_are_set_between_two_trainings_are_refused(strategy):
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over(seed=0)
    model = model_of(strategy)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    model.set_weights([np.zeros_like(each) for each in model.get_weights()])
    with pytest.raises(ValueError, match=r"were set since then.*with a new optimizer"):
        optimizer_hooks.begin(strategy, model)  # as `fit` does; a failed one is not gone on from
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert not np.any(trainable(model))


def test_an_optimizer_that_no_step_calls_has_weights_that_others_update(strategy):
    """As in a GAN whose `compile` is Keras' own, after which it is given its optimizers."""
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over(seed=0)
    with strategy.scope():
        model = Two()
        model(x[:1])
        model.compile()
        of_one, of_other = model.of_one, model.of_other
        del model.of_one, model.of_other
        model.of_one, model.of_other = of_one, of_other
    for number in range(2):
        before = trainable(model)
        model.fit(x, y, batch_size=BATCH, verbose=0)
        every = of_all_ranks(strategy, f"unused {number}", trainable(model).tolist())
        assert all(each == every[0] for each in every)
        assert np.all(trainable(model) < before)


def test_two_optimizers_of_the_same_weights_are_refused(strategy):
    with strategy.scope():
        model = Two()
        model(np.zeros([1, 5], "float32"))
        model.compile()
    model.of_one.build([model.one])
    model.of_other.build([model.one])
    with update_protocol.tracing(model=model):
        _check_alone(model.of_one)
        vars(model.of_one)["tfdp_updates"] = True
        with pytest.raises(ValueError, match=r"both update .*their changes would count twice"):
            _check_alone(model.of_other)


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_epochs_of_so_many_steps_go_on_in_the_data_and_over_their_end(strategy, kind):
    x, y = harness.regression_data(8 * BATCH)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    given = {"x": x, "y": y, "batch_size": BATCH} if kind == "arrays" else {"x": data}
    model, steps = model_of(strategy), collections.Counter()

    class Counts(keras.callbacks.Callback):
        epoch = None

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            steps[self.epoch] += 1

    model.fit(**given, steps_per_epoch=5, epochs=4, verbose=0, callbacks=[Counts()])
    assert steps == dict.fromkeys(range(4), 5)


def test_moving_averages_of_weights_are_refused(strategy):
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.SGD(0.1, use_ema=True))
    with pytest.raises(ValueError, match=r"moving averages of its own.*Leave it out, or use"):
        model.optimizer.build(model.trainable_variables)


def test_a_second_strategy_is_refused(strategy):
    for other in Asynchronous(2), None:
        with pytest.raises(tfdp.errors.ClusterError, match="one strategy whose ranks train apart"):
            tfdp.DataParallelStrategy(synchronization=other)


def test_data_in_another_order_on_each_rank_are_an_error_and_a_failed_fit_is_not_gone_on_from(
    strategy,
):
    """The last: these ranks do not come together again."""
    x, y = harness.regression_data(EXAMPLES)
    model = model_of(strategy)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(EXAMPLES, seed=strategy.rank)
    with pytest.raises(tfdp.errors.RankMismatchError, match="must read the data of `fit` in one"):
        model.fit(data.batch(BATCH), epochs=2, verbose=0)
    with pytest.raises(tfdp.errors.RankLostError, match=r"Start it again"):
        model.fit(x, y, batch_size=BATCH, verbose=0)
