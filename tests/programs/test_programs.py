"""Whole programs, each as one device trains it and as replicas do.

Their batches have different lengths, one of which leaves replicas without examples. Variables,
and all that steps return, are compared.
"""

import pytest
import tiers
from programs.runners import LENGTHS, PROGRAMS, assert_as_one_device, one_device, replicas

# `make test` runs these.
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


def train(name, number, lengths=LENGTHS):
    found = replicas(name, number, lengths)
    assert_as_one_device(found, one_device(name, lengths))
    return found.function.report


# Three replicas share nearly every batch unevenly, so that an even number shows little more.
@pytest.mark.parametrize("name", tiers.cases(PROGRAMS, KEPT))
def test_replicas_train_as_one_device(name):
    report = train(name, 3)
    if name in WITHOUT_WHOLE:
        assert not [*map(str, report.whole)]


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
    train(name, 3, (4, 4))


@pytest.mark.exhaustive("test_replicas_train_as_one_device")
@pytest.mark.parametrize("number", [1, 4])
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
def test_one_replica_and_more_than_there_are_examples_train_alike(name, number):
    train(name, number, (13, 2, 1))


def test_what_is_said_of_programs_is_of_those_that_there_are():
    assert PROGRAMS.keys() >= KEPT | WITHOUT_WHOLE
