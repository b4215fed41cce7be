"""Which runs a sweep needs."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_records import finish, outcome

from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.sweep import MOST_RATES, cell_outcomes, chosen_rate, needed
from benchmarks.convergence.tasks import TASKS

OPTIONS = ConvergenceOptions("mlp", batches=(64, 4096), optimizers=("sgd", "lamb"))

accuracies = st.one_of(st.none(), st.sampled_from([0.1, 0.5, 0.5001, 0.9]))


def peak_at(best):
    """The accuracy falls with the distance of the rate from the best one."""
    return lambda run: (
        0.9 - 0.01 * abs(run.learning_rate / best - 1) / (1 + run.learning_rate / best)
    )


def rates(finished, optimizer, batch, seed=0):
    return [
        run.learning_rate
        for run in finished
        if (run.optimizer, run.batch, run.seed) == (optimizer, batch, seed)
    ]


def test_the_first_rates_of_a_cell_are_the_start_its_double_and_its_half():
    first = needed(OPTIONS, {})
    assert [(run.optimizer, run.batch, run.learning_rate, run.seed) for run in first] == [
        ("sgd", 64, 0.02, 0),
        ("sgd", 64, 0.04, 0),
        ("sgd", 64, 0.01, 0),
        ("lamb", 4096, 0.016, 0),
        ("lamb", 4096, 0.032, 0),
        ("lamb", 4096, 0.008, 0),
    ]


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.016, [0.016, 0.032, 0.008]),
        (0.064, [0.016, 0.032, 0.008, 0.064, 0.128]),
        (0.004, [0.016, 0.032, 0.008, 0.004, 0.002]),
    ],
)
def test_the_sweep_goes_on_until_the_best_rate_has_a_worse_one_on_each_side(best, tried):
    finished = finish(OPTIONS, peak_at(best))
    assert rates(finished, "lamb", 4096) == tried
    assert chosen_rate(OPTIONS, finished, ("lamb", 4096)) == best
    assert rates(finished, "lamb", 4096, seed=2) == [best]


def test_the_sweep_is_bounded_where_the_best_is_always_at_the_edge():
    finished = finish(OPTIONS, lambda run: min(0.99, run.learning_rate / 1000))
    assert len(rates(finished, "lamb", 4096)) == MOST_RATES


def test_where_every_rate_diverges_smaller_ones_are_tried():
    finished = finish(OPTIONS, lambda run: None)
    tried = rates(finished, "lamb", 4096)
    assert (len(tried), max(tried)) == (MOST_RATES, 0.032)
    assert cell_outcomes(OPTIONS, finished, ("lamb", 4096))[1][0].diverged


def test_sgd_at_a_large_batch_runs_only_at_the_base_s_best_rate_scaled_linearly():
    finished = finish(OPTIONS, peak_at(0.01))
    assert rates(finished, "sgd", 4096) == [0.01 * 64]
    assert rates(finished, "sgd", 4096, seed=1) == [0.01 * 64]


def test_of_equally_good_rates_the_lowest_is_chosen():
    finished = finish(OPTIONS, lambda run: 0.5)
    assert chosen_rate(OPTIONS, finished, ("lamb", 4096)) == min(rates(finished, "lamb", 4096))


def test_a_diverged_run_is_worse_than_any_that_is_not():
    finished = finish(OPTIONS, lambda run: 0.0 if run.learning_rate < 0.01 else None)
    assert not cell_outcomes(OPTIONS, finished, ("lamb", 4096))[1][0].diverged


def test_only_the_reference_is_trained_at_the_base_batch_unless_asked_for():
    assert ("lamb", 64) not in OPTIONS.cells
    everywhere = ConvergenceOptions("mlp", batches=(64,), optimizers=("lamb",), all_at_base=True)
    assert everywhere.cells == (("sgd", 64), ("lamb", 64))


def test_runs_of_other_sweeps_change_nothing():
    others = {
        run: outcome(0.99)
        for choices in ({"epochs": 3}, {"examples": 5000}, {"micro_batch": 512}, {"replicas": 1})
        for run in needed(
            ConvergenceOptions("mlp", batches=(64, 4096), optimizers=("sgd", "lamb"), **choices), {}
        )
    }
    assert needed(OPTIONS, others) == needed(OPTIONS, {})


def test_before_a_cell_is_tuned_its_best_rate_as_yet_is_shown():
    options = ConvergenceOptions("mlp", batches=(64,), optimizers=("sgd",))
    half_done = {options.run("sgd", 64, 0.02, 0): outcome(0.7)}
    assert cell_outcomes(options, half_done, ("sgd", 64)) == (0.02, [outcome(0.7)])
    assert chosen_rate(options, half_done, ("sgd", 64)) is None


@pytest.mark.slow
@settings(max_examples=30)
@given(table=st.lists(accuracies, min_size=97, max_size=97), seed=st.integers(0, 2**32))
def test_a_sweep_ends_and_its_runs_do_not_depend_on_their_order(table, seed):
    """Whatever the runs come to, and whichever of those needed finishes first."""
    options = ConvergenceOptions("cnn", batches=(128, 8192), seeds=2, all_at_base=True)

    def accuracy_of(run):
        return table[hash((run.optimizer, run.batch, run.learning_rate, run.seed)) % len(table)]

    bound = len(options.cells) * (MOST_RATES + options.seeds)
    in_turn = finish(options, accuracy_of, most=bound)
    shuffled = finish(options, accuracy_of, random.Random(seed).choice, most=bound)
    assert in_turn == shuffled
    assert needed(options, in_turn) == []
    assert needed(options, dict(reversed(in_turn.items()))) == []


@pytest.mark.parametrize("task", TASKS)
def test_every_cell_of_the_defaults_gets_its_seeds(task):
    options = ConvergenceOptions(task)
    finished = finish(options, peak_at(0.05))
    for cell in options.cells:
        assert len(cell_outcomes(options, finished, cell)[1]) == options.seeds
