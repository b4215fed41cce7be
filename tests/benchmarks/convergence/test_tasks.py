"""The tasks, and where their sweeps begin."""

import math

import pytest

from benchmarks.convergence.tasks import OPTIMIZERS, TASKS, starting_rate

every_task = pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)


@every_task
def test_a_sweep_begins_at_every_optimizer_s_own_rate_at_the_base_batch(task):
    assert task.learning_rates.keys() == set(OPTIMIZERS)
    for optimizer in OPTIMIZERS:
        assert starting_rate(task, optimizer, task.base_batch) == task.learning_rates[optimizer]


@every_task
def test_the_starting_rate_grows_about_as_the_square_root_and_on_one_grid(task):
    for batch in (32, *task.batches, 8 * max(task.batches)):
        growth = starting_rate(task, "lamb", batch) / task.learning_rates["lamb"]
        assert math.log2(growth).is_integer()
        assert growth == pytest.approx(max(1, batch / task.base_batch) ** 0.5, rel=0.5)


@every_task
def test_the_default_batches_hold_the_base_and_whole_micro_batches(task):
    assert min(task.batches) == task.base_batch
    for batch in task.batches:
        assert batch < task.micro_batch or batch % task.micro_batch == 0
