"""Ranks that exchange weights without waiting train as one device in the order of arrivals."""

import json
import os
import pathlib
import subprocess
import sys

import clusters
import harness
import keras
import pytest
import tiers

import tfdp
from tfdp.synchronization import Asynchronous

CASES = pathlib.Path(__file__).parent / "in_ranks_apart.py"
EXAMPLES, BATCH = 35, 8


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    ("processes", "devices"), [(2, 1), *tiers.cases([(4, 1), (2, 2)], kept=())]
)
def test_every_rank_trains_apart(processes, devices, tmp_path):
    # What other tests run across processes is one strategy of all of them.
    environ = {"TFDP_TESTS_CLUSTER_REPLICAS": "0", "TFDP_TESTS_FOLDER": str(tmp_path)}
    environ["TFDP_TESTS_DEVICES"] = str(devices)
    clusters.every_rank_passes([CASES], [], processes, **environ)


def adam():
    return keras.optimizers.Adam(0.02, global_clipnorm=0.5)


def windows():
    return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "make"), tiers.first_of((2, adam), (1, adam), (2, windows), (2, scaled))
)
@harness.in_one_process
def test_one_rank_trains_as_one_device(replicas, make):
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over()
    strategy = harness.strategy(replicas, synchronization=Asynchronous(3))
    with strategy.scope():
        model = harness.dense_model(make())
    expected = harness.build_in_scope(lambda: harness.dense_model(make()))
    for each in model, expected:
        harness.start_over()
        each.told = each.fit(x, y, batch_size=BATCH, epochs=2, shuffle=True, verbose=0).history
    harness.assert_close_arrays(model.get_weights(), expected.get_weights(), 1e-5, "weights")
    harness.assert_replicas_identical(model)
    assert model.told["mae"] == pytest.approx(expected.told["mae"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    tiers.first_of({"jit_compile": True}, {"steps_per_execution": 3}, {"run_eagerly": True}),
)
@harness.in_one_process
def test_steps_of_all_kinds_exchange(options):
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over()
    strategy = harness.strategy(2, synchronization=Asynchronous(2))
    with strategy.scope():
        model = harness.dense_model(adam(), **options)
    expected = harness.build_in_scope(lambda: harness.dense_model(adam()))
    for each in model, expected:
        each.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    harness.assert_close_arrays(model.get_weights(), expected.get_weights(), 1e-5, "weights")
    counts = strategy.extended.processes.homes.staleness(vars(model.optimizer)["tfdp_vector"])
    assert counts == {0: 5 + 1}  # after each second of ten updates, and at the end


@pytest.mark.slow
@harness.in_one_process
def test_one_rank_begins_anew_with_weights_that_are_set_between_two_trainings():
    x, y = harness.regression_data(EXAMPLES)
    strategy = harness.strategy(2, synchronization=Asynchronous(2, 9, 0.7, 0.3))
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.SGD(0.0))
    model.fit(x, y, batch_size=BATCH, verbose=0)
    model.set_weights([each + 3 for each in model.get_weights()])
    expected = model.get_weights()
    for _ in range(2):  # the first goes on with a step that was traced before
        model.fit(x, y, batch_size=BATCH, verbose=0)
        harness.assert_close_arrays(model.get_weights(), expected, 1e-7, "weights")


@pytest.mark.slow
@harness.in_one_process
def test_an_error_of_an_exchange_ends_fit_as_itself(monkeypatch):
    x, y = harness.regression_data(EXAMPLES)
    harness.start_over()
    strategy = harness.strategy(1, synchronization=Asynchronous(2))
    with strategy.scope():
        model = harness.dense_model(adam())
    model.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, verbose=0)

    def given_up(name, weights):
        raise tfdp.errors.RankLostError("the others have given this rank up")

    monkeypatch.setattr(strategy.extended.processes.homes, "exchange", given_up)
    with pytest.raises(tfdp.errors.RankLostError, match="the others have given this rank up"):
        model.fit(x, y, batch_size=BATCH, verbose=0)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    ("dies", "comes_again"), [(1, True), *tiers.cases([(0, True), (2, False)], kept=())]
)
def test_a_rank_that_is_killed_does_not_end_the_others(dies, comes_again, tmp_path):
    command = clusters.tfdp_run(3)
    options = ["--max-restarts", str(int(comes_again))]
    script = CASES.parent / "scripts" / "killed_apart.py"
    paths = os.pathsep.join([str(CASES.parents[1]), os.environ.get("PYTHONPATH", "")])
    of_rank = [sys.executable, str(script), str(tmp_path), str(dies), str(comes_again)]
    ended = subprocess.run(
        [*command[:-1], *options, "--", *of_rank],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=clusters.TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    says = f"tfdp run: rank {dies} of 3 ended with signal SIGKILL; the others"
    goes_on = "go on, and it starts again" if comes_again else "train apart from it, and go on"
    assert f"{says} {goes_on}" in ended.stderr
    left = [rank for rank in range(3) if comes_again or rank != dies]
    told = {rank: json.loads((tmp_path / f"rank {rank}").read_text()) for rank in left}
    for each in told.values():
        assert each["weights"] == told[left[0]]["weights"]
        assert each["losses"][1] == told[left[0]]["losses"][1]
    assert told[left[0]]["losses"][1] < 0.5 * told[0 if dies else 1]["losses"][0]
    if comes_again:  # it went on from what the others had learned by then
        assert told[dies]["losses"][0] < told[0 if dies else 1]["losses"][0]
        assert told[dies]["updates"] >= 3
