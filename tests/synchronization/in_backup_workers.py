"""What `BackupWorkers` does, asserted on every rank of three.

Not collected by itself: `test_backup_workers.py` runs it in three processes under a real MPI.
"""

import contextlib
import functools
import json
import logging
import time

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp
from tfdp.base.sharding import share_place
from tfdp.synchronization import BackupWorkers

pytestmark = pytest.mark.telling

RANKS = 3
TRAINS = "test_training_is_that_of_one_device_without_the_rows_that_came_late"
optimizers, layers = keras.optimizers, keras.layers


@pytest.fixture(scope="module")
def strategy():
    return harness.strategy(None, synchronization=BackupWorkers(1))


@pytest.fixture
def board(strategy):
    return strategy.extended.processes.board


def alike(board, value):
    values = [post.value for post in board.all_gather("a value", value)]
    assert all(other == values[0] for other in values), values


def arrivals(strategy):
    return strategy.extended.replicas.arrivals._arrivals


def wait_until_closed(of):
    """Waits until the next update was closed without this rank."""
    deadline = time.monotonic() + 60
    while not of._closing.done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Late(keras.callbacks.Callback):
    """Has a rank wait, before each of its late steps, until the others have closed the update."""

    def __init__(self, strategy, late):
        super().__init__()
        self.strategy, self.late, self.step = strategy, late, 0

    def on_train_batch_begin(self, batch, logs=None):
        if self.late(self.step) == self.strategy.rank:
            wait_until_closed(arrivals(self.strategy))
        self.step += 1


@contextlib.contextmanager
def late_with_gradients(strategy, late):
    """Has a rank compute its late steps, and come with its gradients when they are closed."""
    of, steps = arrivals(strategy), iter(range(10**6))
    total = of.sum

    def sum_(*given):
        if late(next(steps)) == strategy.rank:
            wait_until_closed(of)
        return total(*given)

    of.sum, of.is_closed = sum_, lambda: False
    try:
        yield
    finally:
        del of.sum, of.is_closed


def of_ranks(ranks, *batch):
    """The rows of a global batch that are these ranks'."""
    rows = []
    for rank in ranks:
        _, count, first, _ = share_place(len(batch[0]), RANKS, rank)
        rows += range(int(first), int(first + count))
    return [each[rows] for each in batch]


def batches(x, y, size, epochs):
    for _ in range(epochs):
        for start in range(0, len(x), size):
            yield x[start : start + size], y[start : start + size]


def made(strategy, make):
    harness.start_over()
    with strategy.scope():
        return make()


def begun(strategy, make, x, y):
    """A model that has trained on seven examples, and the updates made before: all ranks trace."""
    known, model = len(strategy.counted_ranks()), made(strategy, make)
    model.fit(x[:7], y[:7], batch_size=7, shuffle=False, verbose=0)
    return model, known


def replayed(make, counted, x, y, size, epochs, first=()):
    """The model that one device trains on the rows of the ranks that counted."""
    harness.start_over()
    model = make()
    for ranks, batch in zip(counted, [*first, *batches(x, y, size, epochs)], strict=True):
        model.train_on_batch(*of_ranks(ranks, *batch))
    return model


def check_as(board, model, replay):
    alike(board, [each.numpy().tobytes().hex() for each in model.trainable_variables])
    harness.assert_close_arrays(model.get_weights(), replay.get_weights(), 1e-5, "weights")
    assert int(model.optimizer.iterations) == int(replay.optimizer.iterations)


def regularized(optimizer, **options):
    """A model whose loss is not only of examples."""
    hidden = layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))
    model = keras.Sequential([keras.Input((5,)), hidden, layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def of_tables(optimizer):
    rows = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 7)
    table, out = layers.Embedding(7, 3), layers.Dense(1)
    model = keras.Sequential([keras.Input((5,)), rows, table, layers.Flatten(), out])
    model.compile(optimizer, "mse")
    return model


def several():
    one, two = optimizers.SGD(0.05, momentum=0.9), optimizers.Adam(0.02)
    return optimizers.MultiOptimizer(lambda v: one if "bias" in v.path else two)


CASES = {
    "a loss of weights": lambda: regularized(optimizers.SGD(0.05, momentum=0.9)),
    "the norm of the sum clipped": lambda: regularized(optimizers.Adam(0.02, global_clipnorm=0.1)),
    "rows of tables": lambda: of_tables(optimizers.SGD(0.05, momentum=0.9)),
    "a loss scale": lambda: regularized(
        optimizers.LossScaleOptimizer(optimizers.SGD(0.05), initial_scale=2.0**6)
    ),
    "several optimizers": lambda: regularized(several()),
    "several steps in an execution": lambda: regularized(
        optimizers.SGD(0.05), steps_per_execution=2
    ),
    "compiled": lambda: regularized(optimizers.SGD(0.05), jit_compile=True),
    "averages of weights": lambda: regularized(
        optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2)
    ),
}


@pytest.mark.parametrize("case", tiers.first_of(*CASES))
def test_training_is_that_of_one_device_without_the_rows_that_came_late(case, strategy, board):
    """Who comes first is chance; of the last batch two ranks have no rows."""
    x, y = harness.regression_data(22)
    model, known = made(strategy, CASES[case]), len(strategy.counted_ranks())
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    counted = strategy.counted_ranks()[known:]
    alike(board, [list(ranks) for ranks in counted])
    assert len(counted) == 8
    assert {len(ranks) for ranks in counted[:3]} == {2}
    assert 0 in counted[3]  # which has the only row
    make = functools.partial(CASES[case])
    replay = replayed(make, counted, x, y, 7, 2)
    if case == "averages of weights":
        replay.optimizer.finalize_variable_values(replay.trainable_variables)
    check_as(board, model, replay)


class Two(keras.Model):
    """A model whose step makes two updates, each by an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.other = layers.Dense(4), layers.Dense(1)
        self.pairs = [
            (optimizers.SGD(0.05, momentum=0.9), self.one),
            (optimizers.Adam(0.02), self.other),
        ]

    def call(self, x):
        return self.other(self.one(x))

    def gradients(self, x, y):
        """The gradients of each layer."""
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return tape.gradient(loss, [layer.trainable_variables for _, layer in self.pairs])

    def train_step(self, data):
        for (optimizer, layer), found in zip(self.pairs, self.gradients(*data), strict=True):
            optimizer.apply(found, layer.trainable_variables)
        return {"updates": 1.0}  # Keras wants some logs


def two():
    model = Two()
    model(np.zeros((1, 5), "float32"))
    model.compile(loss="mse")
    return model


@pytest.mark.exhaustive(TRAINS)
def test_each_optimizer_of_a_step_has_the_rows_of_the_ranks_that_came_to_its_update(
    strategy, board
):
    x, y = harness.regression_data(35)
    model, known = made(strategy, two), len(strategy.counted_ranks())
    late = Late(strategy, lambda step: step % RANKS if step else None)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0, callbacks=[late])
    counted = strategy.counted_ranks()[known:]
    alike(board, [each.numpy().tobytes().hex() for each in model.trainable_variables])
    harness.start_over()
    replay = two()
    for updates, batch in zip(
        zip(counted[::2], counted[1::2], strict=True), batches(x, y, 7, 2), strict=True
    ):
        found = [replay.gradients(*of_ranks(ranks, *batch)) for ranks in updates]
        for number, (optimizer, layer) in enumerate(replay.pairs):
            optimizer.apply(found[number][number], layer.trainable_variables)
    harness.assert_close_arrays(model.get_weights(), replay.get_weights(), 1e-5, "weights")


@pytest.mark.exhaustive(TRAINS)
def test_all_ranks_but_one_may_be_late_and_examples_may_have_weights(board):
    def make():
        fixed = layers.Dense(6, "tanh", trainable=False)
        model = keras.Sequential([keras.Input((5,)), fixed, layers.Dense(1)])
        model.compile(optimizers.SGD(0.05, momentum=0.9), "mse")
        return model

    x, y = harness.regression_data(22)
    given = x, y, np.linspace(0.5, 2.0, len(x))
    other = harness.strategy(None, synchronization=BackupWorkers(2))
    model = made(other, make)
    model.fit(*given[:2], 7, 2, 0, sample_weight=given[2], shuffle=False)
    counted = other.counted_ranks()
    assert all(ranks for ranks in counted) and {len(ranks) for ranks in counted[:3]} == {1}
    harness.start_over()
    replay = make()
    starts = 2 * [*range(0, len(x), 7)]
    for ranks, start in zip(counted, starts, strict=True):
        replay.train_on_batch(*of_ranks(ranks, *(each[start : start + 7] for each in given)))
    check_as(board, model, replay)


def turns(step):
    return step % RANKS


@pytest.mark.parametrize("computes", tiers.first_of(False, True), ids=["skips", "computes"])
def test_a_late_rank_drops_its_gradients_and_metrics_are_of_what_was_computed(
    computes, strategy, board
):
    x, y = harness.regression_data(35)
    make, first = CASES["a loss of weights"], [(x[:7], y[:7])]
    model, known = begun(strategy, make, x, y)
    options = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
    if computes:
        with late_with_gradients(strategy, turns):
            history = model.fit(x, y, **options).history
    else:
        history = model.fit(x, y, callbacks=[Late(strategy, turns)], **options).history
    before, *counted = strategy.counted_ranks()[known:]
    assert counted == [tuple(rank for rank in range(3) if rank != turns(i)) for i in range(10)]
    check_as(board, model, replayed(make, [before, *counted], x, y, 7, 2, first))
    replay = replayed(make, [before], x[:0], y[:0], 7, 0, first)
    totals = [np.zeros(3), np.zeros(3)]
    for step, (ranks, batch) in enumerate(zip(counted, batches(x, y, 7, 2), strict=True)):
        seen = batch if computes else of_ranks(ranks, *batch)
        found = replay.test_on_batch(*seen, return_dict=True)
        replay.reset_metrics()
        rows = len(seen[0])
        totals[step // 5] += [rows * found["loss"], rows * found["mae"], rows]
        replay.train_on_batch(*of_ranks(ranks, *batch))
        replay.reset_metrics()
    expected = np.array(totals)
    np.testing.assert_allclose(history["mae"], expected[:, 1] / expected[:, 2], rtol=1e-5)
    if computes:  # else a loss of weights counts for the rows that were left
        np.testing.assert_allclose(history["loss"], expected[:, 0] / expected[:, 2], rtol=1e-5)
    alike(board, history)


def test_a_rank_that_is_behind_catches_up_and_the_others_wait_for_no_metric(strategy, board):
    """They make five steps and show logs of their own before the late rank begins its first."""
    x, y = harness.regression_data(70)
    seen = []

    class Sees(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if strategy.rank == 2 and batch == 0:
                board.wait("five steps", [0, 1], "five steps")

        def on_train_batch_end(self, batch, logs=None):
            seen.append({name: float(value) for name, value in logs.items()})
            if strategy.rank != 2 and batch == 4:
                board.post("five steps", True)

    make, first = CASES["a loss of weights"], [(x[:7], y[:7])]
    model, known = begun(strategy, make, x, y)
    model.fit(x, y, batch_size=7, shuffle=False, verbose=0, callbacks=[Sees()])
    counted = strategy.counted_ranks()[known:]
    assert counted[1:6] == [(0, 1)] * 5
    check_as(board, model, replayed(make, counted, x, y, 7, 1, first))
    assert seen[0].keys() == {"loss", "mae"}
    if strategy.rank != 2:
        rows, targets = of_ranks([strategy.rank], x[:7], y[:7])
        replay = replayed(make, counted[:1], x[:0], y[:0], 7, 0, first)
        error = np.abs(replay.predict(rows, verbose=0) - targets).mean()
        np.testing.assert_allclose(seen[0]["mae"], error, rtol=1e-5)


def test_a_step_exchanges_gradients_alone(strategy):
    x, y = harness.regression_data(7)
    model = made(strategy, CASES["a loss of weights"])
    model.fit(x, y, batch_size=7, verbose=0)
    assert {each.kind for each in strategy.explain(model).collectives} == {"update"}


def test_what_did_not_count_is_said_at_the_end_of_fit(strategy, caplog):
    x, y = harness.regression_data(21)
    model, _ = begun(strategy, CASES["a loss of weights"], x, y)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tfdp"):
        options = {"batch_size": 7, "shuffle": False, "verbose": 0}
        model.fit(x, y, callbacks=[Late(strategy, lambda step: 1)], **options)
    said = [record.getMessage() for record in caplog.records if "did not count" in record.msg]
    expected = "6 of 21 examples (29%) did not count in 3 updates, as their ranks came late: "
    assert said == ([expected + "rank 1 3 times."] if strategy.rank == 0 else [])


def test_a_checkpoint_goes_on_with_the_updates_that_it_has(strategy, board, tmp_path):
    x, y = harness.regression_data(35)
    make, counted = CASES["a loss of weights"], []

    def train(*callbacks):
        model, known = made(strategy, make), len(strategy.counted_ranks())
        checkpoint = tfdp.callbacks.Checkpoint(tmp_path / "kept", every_steps=3)
        options = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
        try:
            model.fit(x, y, callbacks=[checkpoint, *callbacks], **options)
        finally:
            counted.append(strategy.counted_ranks()[known:])
        return model

    with pytest.raises(KeyboardInterrupt):
        train(harness.Interrupts(5))
    model = train()
    assert [len(each) for each in counted] == [5, 7]
    replay = replayed(make, [*counted[0][:3], *counted[1]], x, y, 7, 2)
    check_as(board, model, replay)


def test_telemetry_counts_what_was_dropped_and_sent(strategy, tmp_path):
    x, y = harness.regression_data(21)
    model = made(strategy, CASES["a loss of weights"])
    telemetry = tfdp.callbacks.Telemetry(tmp_path / "logs", tensorboard=False)
    options = {"batch_size": 7, "shuffle": False, "verbose": 0}
    late = Late(strategy, lambda step: 1 if step else None)  # the first step is traced, on all
    model.fit(x, y, callbacks=[telemetry, late], **options)
    text = (tmp_path / "logs" / f"rank{strategy.rank}.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "step"]
    first, *others = [line["dropped_examples"] for line in lines]
    assert first in (2, 3) and others == [2, 2]
    assert all(line["bytes_sent"] > 0 for line in lines)


def test_loops_of_ones_own_do_without_late_rows(strategy, board):
    x, y = harness.regression_data(28)
    model = made(strategy, CASES["a loss of weights"])
    known = len(strategy.counted_ranks())

    @strategy.partitioned
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - model(x, training=True)) ** 2) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    for batch in batches(x, y, 7, 1):
        step(*map(tf.constant, batch))
    counted = strategy.counted_ranks()[known:]
    check_as(board, model, replayed(CASES["a loss of weights"], counted, x, y, 7, 1))


def normalized():
    model = keras.Sequential([layers.Dense(6), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_gradients_that_depend_on_all_ranks_are_refused_with_the_line(strategy):
    x, y = harness.regression_data(7)
    model = made(strategy, normalized)
    with pytest.raises(
        tfdp.errors.PartitionError, match=r"must not depend on what all ranks.*per_r"
    ):
        model.fit(x, y, batch_size=7, verbose=0)


def test_each_rank_may_normalize_by_its_own_rows(board):
    """Their moving statistics are those of all, for which ranks wait."""
    x, y = harness.regression_data(14)
    options = {"synchronization": BackupWorkers(1), "batch_normalization": "per_replica"}
    model = made(harness.strategy(None, **options), normalized)
    model.fit(x, y, batch_size=7, verbose=0)
    alike(board, [each.numpy().tobytes().hex() for each in model.variables])
    assert len(model.distribute_strategy.counted_ranks()) == 2


def test_updates_in_run_are_refused(strategy):
    model = made(strategy, CASES["a loss of weights"])

    def update():
        ones = [tf.ones(each.shape) for each in model.trainable_variables]
        model.optimizer.apply(ones, model.trainable_variables)

    with pytest.raises(tfdp.errors.PartitionError, match="need one batch, of which each has examp"):
        tf.function(lambda: strategy.run(update))()


def test_accumulated_gradients_are_refused(strategy):
    with pytest.raises(ValueError, match=r"each batch is an update.*gradient_accumulation_steps=2"):
        made(strategy, lambda: regularized(optimizers.SGD(0.1, gradient_accumulation_steps=2))).fit(
            *harness.regression_data(7), verbose=0
        )


def test_other_batches_are_named_at_the_end_of_an_epoch(strategy):
    x, y = harness.regression_data(14)
    model = made(strategy, CASES["a loss of weights"])
    x[7] += strategy.rank
    with pytest.raises(tfdp.errors.RankMismatchError, match="what ranks trained on until the end"):
        model.fit(x, y, batch_size=7, shuffle=False, verbose=0)


def test_no_fewer_ranks_may_be_left(strategy):
    with pytest.raises(ValueError, match=r"must be left.*BackupWorkers\(backups=3\).*are 3 ranks"):
        harness.strategy(None, synchronization=BackupWorkers(3))
    with pytest.raises(ValueError, match=r"need MPI's engine.*BackupWorkers\(backups=1\)"):
        harness.strategy(None, synchronization=BackupWorkers(1), engine="tensorflow")
