"""Checkpoint: a training that was stopped at any moment ends as if it had not been."""

import functools
import pathlib
import re
import subprocess
import sys

import harness
import keras
import numpy as np
import pytest
import resumed_training
import tensorflow as tf
import tiers
from resumed_training import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    STEPS,
    Stop,
    StopAt,
    assert_same,
    build,
    pipeline,
    train,
)

import tfdp
from tfdp import topology
from tfdp.callbacks.checkpoint import folder
from tfdp.callbacks.checkpoint.data_place import PipelinePlace
from tfdp.strategy import auto_topology


@pytest.fixture
def undisturbed():
    return resumed_training.undisturbed()


CASES = {
    "within an epoch": (2 * STEPS + 3, {"every_steps": 1}),
    "at the first step": (1, {"every_steps": 1}),
    "before an epoch's end": (STEPS - 1, {"every_steps": 2}),
    "at an epoch's end": (STEPS, {"every_steps": 1}),
    "by epochs": (2 * STEPS + 3, {"every_epochs": 1}),
    "by two epochs": (3 * STEPS + 1, {"every_epochs": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.cases(CASES, ["within an epoch"]))
def test_a_training_that_was_stopped_ends_like_one_that_was_not(case, tmp_path, undisturbed):
    stop_at, every = CASES[case]
    with pytest.raises(Stop):
        train(tmp_path, stop_at=stop_at, **every)
    assert_same(train(tmp_path, **every), undisturbed)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
@pytest.mark.parametrize("inner", ["TopK", "PowerSGD", "Int8"])
def test_what_a_compression_has_left_is_kept(inner, tmp_path):
    kinds = {"TopK": {"ratio": 0.25}, "PowerSGD": {"rank": 1}, "Int8": {"block": 4}}
    kind = getattr(tfdp.compression, inner)
    feedback = tfdp.compression.ErrorFeedback(kind(**kinds[inner], smallest=1))
    whole = train(None, compression=feedback)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=2 * STEPS + 3, compression=feedback, every_steps=1)
    assert_same(train(tmp_path, compression=feedback, every_steps=1), whole)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_what_was_measured_before_a_stop_sums_after_it(tmp_path, monkeypatch, caplog):
    links = topology.Links(1e-3, 1e8, 1e-3, 1e8)
    decided = [
        topology.Auto((topology.Rule(None, kind),), 1024, links)
        for kind in (topology.HalvingDoubling(), topology.Ring())
    ]
    on_three = {"devices": ["CPU:0", "CPU:1", "CPU:2"], "topology": "auto"}
    monkeypatch.setattr(auto_topology, "decide", lambda *_: decided[0])
    whole = train(None, **on_three)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=STEPS + 3, every_steps=1, **on_three)
    monkeypatch.setattr(auto_topology, "decide", lambda *_: decided[1])
    assert_same(train(tmp_path, every_steps=1, **on_three), whole)
    assert "within rounding, but not with the bits" not in caplog.text
    on_three["topology"] = "ring"
    (tmp_path / "step-00000024.checkpoint").unlink()
    train(tmp_path, every_steps=1, **on_three)
    assert "the topology was auto and is Ring()" in caplog.text


def dataset():
    return tf.data.Dataset.from_tensor_slices(harness.regression_data(EXAMPLES)).shuffle(9)


def generated():
    x, y = harness.regression_data(EXAMPLES)
    random = np.random.default_rng(5)
    while True:
        chosen = random.integers(0, EXAMPLES, BATCH)
        yield x[chosen], y[chosen]


class Shuffled(keras.utils.PyDataset):
    """Shuffles as many datasets of users do: in NumPy's own state, at an epoch's end."""

    def __init__(self):
        super().__init__()
        self.x, self.y = harness.regression_data(EXAMPLES)
        self.order = np.arange(EXAMPLES)

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        chosen = self.order[index * BATCH : (index + 1) * BATCH]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def arrays(**arguments):
    x, y = harness.regression_data(EXAMPLES)
    return {"x": x, "y": y, "batch_size": BATCH, **arguments}


DATA = {
    "arrays": arrays,
    "arrays from a later epoch": lambda: arrays(initial_epoch=1),
    "a dataset": lambda: {"x": dataset().batch(BATCH)},
    "a dataset of unknown length": lambda: {"x": dataset().batch(BATCH).filter(lambda *_: True)},
    "a repeated dataset": lambda: {"x": dataset().repeat().batch(BATCH), "steps_per_epoch": 5},
    "an iterator over several epochs": lambda: {
        "x": dataset().repeat(2).batch(BATCH),
        "steps_per_epoch": 4,
    },
    "a generator": lambda: {"x": generated(), "steps_per_epoch": 5},
    "a shuffled PyDataset": lambda: {"x": Shuffled()},
    "a pipeline in other epochs": lambda: {"x": pipeline(), "steps_per_epoch": 4},
}


# What is asked of data and callbacks does not depend on the replicas.
ALONE = ("CPU:0",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiers.cases(DATA, ["a pipeline in other epochs"]))
def test_data_of_other_kinds_go_on_where_they_were(kind, tmp_path):
    whole = train(None, devices=ALONE, data=DATA[kind])
    with pytest.raises(Stop):
        train(tmp_path, stop_at=10, devices=ALONE, data=DATA[kind], every_steps=1)
    assert_same(train(tmp_path, devices=ALONE, data=DATA[kind], every_steps=1), whole)


@pytest.mark.exhaustive("test_data_of_other_kinds_go_on_where_they_were")
def test_data_of_other_kinds_go_on_between_epochs(tmp_path):
    whole = train(None, devices=ALONE, data=arrays)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=2 * STEPS + 2, devices=ALONE, data=arrays, every_epochs=1)
    assert_same(train(tmp_path, devices=ALONE, data=arrays, every_epochs=1), whole)


@pytest.mark.exhaustive("test_data_of_other_kinds_go_on_where_they_were")
def test_data_go_on_after_two_stops_with_several_steps_an_execution(tmp_path):
    whole = train(None, devices=ALONE, data=arrays, steps_per_execution=4)
    for stop_at in (3, 2):
        with pytest.raises(Stop):
            train(
                tmp_path,
                stop_at=stop_at,
                devices=ALONE,
                data=arrays,
                steps_per_execution=4,
                every_steps=4,
            )
    assert_same(
        train(tmp_path, devices=ALONE, data=arrays, steps_per_execution=4, every_steps=4), whole
    )


def slower():
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]


@functools.cache
def slowed():
    return train(None, devices=ALONE, others=slower())


@pytest.mark.exhaustive("callbacks/test_checkpoint_corners.py::test_what_callbacks_do_goes_on")
@pytest.mark.parametrize("stop_at", [STEPS + 2, 2 * STEPS])
def test_what_callbacks_do_at_an_epoch_s_beginning_is_done_once(stop_at, tmp_path):
    with pytest.raises(Stop):
        train(tmp_path, stop_at=stop_at, devices=ALONE, others=slower(), every_steps=1)
    assert_same(train(tmp_path, devices=ALONE, others=slower(), every_steps=1), slowed())


OTHERS = {
    "one replica goes on": ["CPU:0"],
    "three replicas go on": ["CPU:0", "CPU:1", "CPU:2"],
}


@pytest.mark.exhaustive(
    "test_ranks_that_start_again_after_a_kill_end_like_a_training_that_was_not_disturbed"
)
@pytest.mark.parametrize("case", OTHERS)
def test_other_replicas_go_on_within_rounding(case, tmp_path):
    whole = train(None)
    with pytest.raises(Stop):  # within a window of accumulated gradients
        train(tmp_path, stop_at=STEPS + 3, every_steps=1)
    values, history, *rest = train(tmp_path, every_steps=1, devices=OTHERS[case])
    for left, right in zip(values, whole[0], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert history.keys() == whole[1].keys()
    for name in history:
        np.testing.assert_allclose(history[name], whole[1][name], rtol=1e-5)
    assert rest == list(whole[2:])


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_a_loss_scale_and_averages_go_on(tmp_path):
    def make_optimizer():
        inner = keras.optimizers.Nadam(0.05, use_ema=True, ema_overwrite_frequency=5)
        return keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=4)

    whole = train(None, make_optimizer=make_optimizer)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=9, make_optimizer=make_optimizer, every_steps=1)
    assert_same(train(tmp_path, make_optimizer=make_optimizer, every_steps=1), whole)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_a_training_that_has_ended_is_there_again_without_a_step(tmp_path, undisturbed):
    train(tmp_path, every_epochs=1)
    assert_same(train(tmp_path, stop_at=1, every_epochs=1), undisturbed)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_more_epochs_go_on_where_the_training_ended(tmp_path, undisturbed):
    train(tmp_path, epochs=2, every_steps=100)
    assert_same(train(tmp_path, every_steps=100), undisturbed)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_executions_of_several_steps_are_kept_at_their_end(tmp_path):
    whole = train(None, steps_per_execution=4)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=3, steps_per_execution=4, every_steps=2)
    assert_same(train(tmp_path, steps_per_execution=4, every_steps=2), whole)


@pytest.mark.slow
def test_a_training_is_kept_by_the_clock(tmp_path, undisturbed):
    late = StopAt(STEPS + 1, resumed_training.until_asked)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=STEPS + 3, others=[late], every_seconds=1)
    newest = folder.newest_first(tmp_path)[0]
    assert int(newest.stem.removeprefix("step-")) > STEPS
    assert_same(train(tmp_path, every_seconds=1), undisturbed)


@pytest.mark.exhaustive("test_a_training_that_was_stopped_ends_like_one_that_was_not")
def test_the_newest_checkpoints_stay(tmp_path):
    train(tmp_path, epochs=2, every_steps=2, keep=2)
    assert [path.name for path in folder.newest_first(tmp_path)] == [
        f"step-{step:08}.checkpoint" for step in (2 * STEPS, 2 * STEPS - 2)
    ]


@pytest.fixture
def begin():
    """Makes the callbacks of models that begin to train."""
    begun = []

    def begin(directory, model):
        with model.distribute_strategy.scope():
            if model.built:
                model.optimizer.build(model.trainable_variables)
        kept = tfdp.callbacks.Checkpoint(directory, every_epochs=1)
        kept.watch(PipelinePlace(pipeline()), [])
        begun.append(kept)
        keras.callbacks.CallbackList([kept], add_history=True, model=model, epochs=1)
        model.history.on_train_begin()
        kept.on_train_begin()
        return kept

    yield begin
    for kept in begun:
        kept.close()


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_with_the_difference(tmp_path, begin):
    kept = begin(tmp_path, build(lambda: keras.optimizers.SGD(0.1)))
    kept.on_epoch_end(0)
    kept.on_train_end()
    with pytest.raises(ValueError, match=r"the optimizer there: SGD; here: Adam.*another folder"):
        begin(tmp_path, build(lambda: keras.optimizers.Adam(0.1)))
    with pytest.raises(ValueError, match=r"variables of the kind 'optimizer'"):
        begin(tmp_path, build(lambda: keras.optimizers.SGD(0.1, momentum=0.9)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "One of `every_steps`, `every_epochs` and `every_seconds` must be given"),
        ({"every_steps": 1, "every_epochs": 1}, "received every_steps=1, every_epochs=1,"),
        ({"every_seconds": 0.5}, "`every_seconds` must be a number of at least 1"),
        ({"every_steps": 0}, "`every_steps` must be a whole number of at least 1"),
        ({"every_epochs": 1.5}, "received 1.5"),
        ({"every_epochs": 1, "keep": True}, "`keep` must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        tfdp.callbacks.Checkpoint("folder", **arguments)


def stopped(directory, data):
    with pytest.raises(Stop):
        train(directory, stop_at=3, devices=ALONE, data=data, every_steps=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (arrays, lambda: {"x": pipeline()}, r"those were no `tfdp.data.pipeline`"),
        (lambda: {"x": pipeline()}, arrays, r"those were a `tfdp.data.pipeline`"),
        (
            arrays,
            lambda: keras.utils.set_random_seed(4) or arrays(),
            r"the seed of TensorFlow was another one \(3; now 4\)",
        ),
        (
            arrays,
            lambda: np.random.random() and arrays(),
            r"the state of `numpy.random` was another",
        ),
        (
            lambda: {"x": dataset().batch(BATCH)},
            lambda: {"x": dataset().take(BATCH).batch(BATCH)},
            r"kept after 2 batches, but these have 1",
        ),
    ],
)
def test_other_data_are_refused(before, after, words, tmp_path):
    stopped(tmp_path, before)
    with pytest.raises(ValueError, match=words):
        train(tmp_path, devices=ALONE, data=after, every_steps=1)


@pytest.mark.slow
def test_an_execution_over_the_place_is_refused(tmp_path):
    stopped(tmp_path, arrays)
    with pytest.raises(ValueError, match=r"after 2 steps of an epoch, and steps_per_execution=4"):
        train(tmp_path, devices=ALONE, data=arrays, every_steps=1, steps_per_execution=4)


def test_data_without_a_seed_are_refused(tmp_path):
    def unseeded():
        tf.random.set_seed(None)
        return arrays()

    with pytest.raises(ValueError, match=r"Call `keras.utils.set_random_seed\(1\)`"):
        train(tmp_path, devices=ALONE, data=unseeded, every_epochs=1)


@pytest.mark.slow
def test_two_that_go_on_with_a_training_are_refused(tmp_path):
    kept = tfdp.callbacks.Checkpoint(tmp_path, every_epochs=1)
    again = tfdp.callbacks.Checkpoint(tmp_path, every_epochs=1)
    for other in (again, keras.callbacks.BackupAndRestore(tmp_path / "backup")):
        words = f"received Checkpoint and {type(other).__name__}"
        with pytest.raises(ValueError, match=words):
            build().fit(pipeline(), callbacks=[other, kept], verbose=0)


@pytest.mark.slow
def test_a_backup_is_said_to_begin_epochs_anew(tmp_path, caplog):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
    build().fit(pipeline(), callbacks=[backup], verbose=0)
    assert "begins an epoch anew (with `save_freq=N` batches come twice)" in caplog.text
    assert "`tfdp.callbacks.Checkpoint(folder, every_steps=1000)` goes on" in caplog.text


def test_a_model_that_its_first_step_builds_is_refused(tmp_path, begin):
    with tfdp.DataParallelStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Build it before: give it a `keras.Input`"):
        begin(tmp_path, model)


@pytest.mark.slow
def test_a_model_outside_of_a_strategy_is_refused(tmp_path):
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kept = tfdp.callbacks.Checkpoint(tmp_path, every_epochs=1)
    with pytest.raises(ValueError, match=r"Make and compile the model within"):
        model.fit(pipeline(), callbacks=[kept], verbose=0)


RANK = """
import hashlib, json, os, pathlib, signal, sys, time
sys.path[:0] = {paths!r}
import lean
lean.import_keras()
import keras
import numpy as np
import resumed_training

cluster = json.loads(os.environ["TF_CONFIG"])
rank, world_size = cluster["task"]["index"], len(cluster["cluster"]["worker"])
attempt = int(os.environ["TFDP_RESTART_COUNT"])
fewer, more = {fewer}, {more}  # 0: the number of ranks stays
shard = {shard!r} if world_size > 1 else None
slots = pathlib.Path("{folder}", "slots")
print("attempt", attempt, "of", world_size, flush=True)


class Disturbances(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if attempt == 0 and rank == world_size - 1 and self.steps == 9:
            slots.write_text(str(fewer))
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 1 and more and self.steps == 1:
            slots.write_text(str(more))
            resumed_training.until_asked()


values, history, epochs, _ = resumed_training.train(
    f"{folder}/rank-{{rank}}",  # no rank sees another one's folder
    devices=None,
    others=[Disturbances()],
    every_steps=2,
    shard=shard,
)
digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
print("digest", digest, len(epochs), flush=True)
if rank == 0:
    np.savez("{folder}/values.npz", *values)
"""

# The options of `tfdp run`, the ranks of each attempt, and what more than one rank shards.
RESTARTS = {
    "2, 2": (["-n", "2"], [2, 2], "optimizer"),
    "2, 1, 2, sharded": (["-n", "1:2"], [2, 1, 2], "gradients"),
    "4, 2, 3": (["-n", "2:4"], [4, 2, 3], None),
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", tiers.cases(RESTARTS, ["2, 1, 2, sharded"]))
def test_ranks_that_start_again_after_a_kill_end_like_a_training_that_was_not_disturbed(
    case, tmp_path
):
    words, ranks, shard = RESTARTS[case]
    fewer, more = ranks[1:] if len(ranks) == 3 else (0, 0)
    script = tmp_path / "train.py"
    here = pathlib.Path(__file__).parent
    paths = [str(here), str(here.parent)]
    given = {"fewer": fewer, "more": more, "shard": shard}
    script.write_text(RANK.format(paths=paths, folder=tmp_path, **given))
    if more:
        (tmp_path / "slots").write_text(str(ranks[0]))
        words = [*words, "--discover", f"cat {tmp_path}/slots", "--discover-every", "0.2"]
    command = [sys.executable, "-m", "tfdp.tools.cli", "run", *words, "--max-restarts", "1"]
    run = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stderr
    for attempt, number in enumerate(ranks):
        assert run.stdout.count(f"attempt {attempt} of {number}") == number
    assert f"rank {ranks[0] - 1} of {ranks[0]} failed first, with signal SIGKILL" in run.stderr
    assert "The training goes on from" in run.stderr
    digests = re.findall(r"digest (\w+) (\d+)", run.stdout)
    assert digests == [digests[0]] * ranks[-1]
    assert digests[0][1] == str(EPOCHS)
    assert not (tmp_path / "rank-1").exists()
    expected = train(None, devices=("CPU:0",))[0]
    largest = np.abs(expected[0]).max()  # of the first kernel
    with np.load(tmp_path / "values.npz") as values:
        for name, value in zip(values, expected, strict=True):
            assert np.abs(values[name].astype("float64") - value).max() < 1e-5 * largest
