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


def model_of(strategy):
    harness.start_over(seed=strategy.rank)  # each begins otherwise, and goes on from rank 0's
    with strategy.scope():
        return harness.dense_model(keras.optimizers.Adam(0.02), metrics=())


def homes_of(strategy, model):
    name = vars(model.optimizer)["tfdp_vector"]
    return strategy.extended.processes.homes.staleness(name)


def test_training_is_that_of_one_device_in_the_order_of_arrivals(strategy, homes, taken):
    x, y = harness.regression_data(EXAMPLES)
    epochs = 2
    model = model_of(strategy)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    name = vars(model.optimizer)["tfdp_vector"]
    events, ends = homes.events(name), flat(model.get_weights())

    parts = parts_of(x, y, strategy.world_size)
    mine = [[each for each in taken[epoch] if each < len(parts)] for epoch in range(epochs)]
    told = of_all_ranks(strategy, "taken", [mine, ends.tolist(), int(model.optimizer.iterations)])
    for epoch in range(epochs):
        assert sorted(joined(each[0][epoch] for each in told)) == list(range(len(parts)))
    for each, other, updates in told:
        assert other == ends.tolist()
        assert updates == sum(map(len, each))

    workers, batches = [], []
    for each, _, _ in told:
        harness.start_over(seed=0)
        workers.append(harness.dense_model(keras.optimizers.Adam(0.02), metrics=()))
        batches.append(iter([parts[part] for part in joined(each)]))
    first = flat(workers[0].get_weights())

    def trained(rank, number, weights):
        worker, place, given = workers[rank], 0, []
        for variable in worker.get_weights():
            given.append(weights[place : place + variable.size].reshape(variable.shape))
            place += variable.size
        worker.set_weights(given)
        for _, batch in zip(range(EVERY), batches[rank], strict=False):
            worker.train_on_batch(*batch)
        return flat(worker.get_weights())

    expected = asynchronous_replay.replay(
        events, first, trained, strategy.world_size, RATE, MOMENTUM
    )
    harness.assert_close_arrays([ends], [expected], 1e-5, "weights")


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


def test_shuffled_examples_come_once_an_epoch(strategy, taken):
    numbers = np.arange(64.0, dtype="float32")[:, None]

    def number(y, outputs):
        return y[:, 0]

    def square(y, outputs):
        return y[:, 0] ** 2

    harness.start_over(seed=strategy.rank)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[number, square])
    told = model.fit(numbers, numbers, batch_size=BATCH, epochs=2, shuffle=True, verbose=0)
    rows = BATCH // strategy.world_size
    for epoch in range(2):
        count = rows * sum(each < 64 // rows for each in taken[epoch])
        sums = [count * told.history[name][epoch] for name in ("number", "square")]
        every = of_all_ranks(strategy, f"sums of epoch {epoch}", sums)
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


def test_a_second_strategy_is_refused(strategy):
    for other in Asynchronous(2), None:
        with pytest.raises(tfdp.errors.ClusterError, match="one strategy whose ranks train apart"):
            tfdp.DataParallelStrategy(synchronization=other)
