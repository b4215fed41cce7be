"""What ranks compare when they meet."""

import pytest
import tensorflow as tf

from tfdp.communication.collectives import introductions

VERSIONS = {"python": "3.11.7", "tfdp": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1"}


def introduction(local_size=1, **versions):
    return {"versions": VERSIONS | versions, "local_size": local_size, "address": "b:2000"}


def test_ranks_alike_may_join_and_pythons_may_differ():
    same = [introduction(), introduction(python="3.12.1"), introduction()]
    assert introductions.difference(same) is None


@pytest.mark.parametrize("distribution", ["tfdp", "tensorflow", "keras"])
def test_another_version_is_named_with_rank_address_and_both_versions(distribution):
    reason = introductions.difference([introduction(), introduction(**{distribution: "9.9"})])
    assert f"rank 0 has {distribution} {VERSIONS[distribution]}" in reason
    assert "rank 1 (b:2000) has 9.9" in reason
    assert f"Install {distribution}=={VERSIONS[distribution]}" in reason


def test_another_number_of_devices_is_named():
    reason = introductions.difference([introduction(2), introduction(2), introduction(1)])
    assert "rank 0 has 2 and rank 2 (b:2000) has 1" in reason


def test_the_versions_are_those_that_run():
    assert introductions.own(1)["versions"]["tensorflow"] == tf.__version__
