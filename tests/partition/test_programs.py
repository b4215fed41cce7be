"""Whole programs, each as one device trains it and as replicas do.

Their batches have different lengths, one of which leaves replicas without examples. Variables,
and all that steps return, are compared.
"""

import pytest
import tiers
from partition import (
    derivative_programs,
    drawing_programs,
    irregular_programs,
    layered_programs,
    looping_programs,
    plain_programs,
    stateful_programs,
)
from partition.training import PROGRAMS, assert_trains_alike

MODULES = (
    layered_programs,
    plain_programs,
    drawing_programs,
    derivative_programs,
    stateful_programs,
    looping_programs,
    irregular_programs,
)

# `make test` runs these, on two replicas.
KEPT = {
    "accumulation_and_averages",
    "batch_normalization",
    "contrast_of_two_views",
    "convolutions_and_dropout",
    "counters_and_statistics",
    "dense_layers_with_clipping",
    "draws_from_hidden_states",
    "hardest_triplets",
    "losses_of_chosen_examples",
    "loss_scale_with_an_overflow",
    "lstm_of_unknown_length",
    "python_in_the_step",
    "ragged_rows",
    "results_of_many_kinds",
    "steps_within_a_step",
    "summands_in_branches_and_loops",
}

# Sums in float16 are rounded otherwise.
TOLERANCES = {"half_precision": 2e-2}

# Of these nothing is computed whole: what is common in training stays cut.
WITHOUT_WHOLE = {
    "accumulation_and_averages",
    "batch_normalization",
    "contrast_of_images_and_texts",
    "convolutions_and_dropout",
    "convolutions_in_groups",
    "counters_and_statistics",
    "dense_layers_with_clipping",
    "drawn_codes",
    "embedding_with_gradients_of_rows",
    "functions_within_the_step",
    "gradients_of_each_example",
    "half_precision",
    "loss_scale_with_an_overflow",
    "lstm",
    "lstm_of_unknown_length",
    "many_metrics",
    "maps_over_examples",
    "masked_token_losses",
    "steps_within_a_step",
    "transformer",
    "variance_and_covariance",
}

CASES = [(name, replicas) for name in PROGRAMS for replicas in (2, 3)]


@pytest.mark.parametrize(
    ("name", "replicas"),
    tiers.cases(CASES, [(name, 2) for name in KEPT]),
    ids=[f"{name}-{replicas}" for name, replicas in CASES],
)
def test_replicas_train_as_one_device(name, replicas):
    found = assert_trains_alike(name, replicas, TOLERANCES.get(name, 1e-5))
    if name in WITHOUT_WHOLE:
        assert not [*map(str, found.function.report.whole)]


@pytest.mark.parametrize(
    "name",
    tiers.first_of(
        "lstm",
        "contrast_of_two_views",
        "loops_until_the_batch_agrees",
        "maps_over_examples",
        "masked_gru_in_both_directions",
        "mixture_of_experts",
        "states_of_sequences",
        "the_batch_s_axis_turned_about",
        "transformer",
    ),
)
def test_a_length_that_the_program_knows_is_no_other_axis_length(name):
    assert_trains_alike(name, 3, lengths=(4, 4))


@pytest.mark.exhaustive("test_replicas_train_as_one_device")
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize(
    "name",
    [
        "accumulation_and_averages",
        "batch_normalization",
        "drawn_codes",
        "hardest_triplets",
        "lstm_of_unknown_length",
        "mixture_of_experts",
        "ragged_rows",
        "summands_in_branches_and_loops",
    ],
)
def test_one_replica_and_more_than_there_are_examples_train_alike(name, replicas):
    assert_trains_alike(name, replicas, lengths=(13, 2, 1))


def test_every_program_is_found_in_a_module():
    found = {_name(build.__module__) for build in PROGRAMS.values()}
    assert found == {_name(module.__name__) for module in MODULES}
    assert PROGRAMS.keys() >= KEPT


def _name(module):
    """A module's name, which a search for doctests writes with that of its folder."""
    return module.rpartition(".")[2]
