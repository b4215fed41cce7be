"""Numbers, the chosen coordinator and derived ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.cluster.environment_variables import (
    chosen_coordinator,
    derived_port,
    integer,
    rank_and_size,
)
from tfdp.errors import ClusterError


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", " 1", "²", "0x1"])
def test_a_variable_that_is_no_number_is_named_with_its_value(text):
    with pytest.raises(ClusterError) as error:
        integer({"PMI_RANK": text}, "PMI_RANK")
    assert f"`PMI_RANK` must be a whole number of at least 0, but is {text!r}" in str(error.value)
    assert "unset it" in str(error.value)


def test_a_missing_variable_is_named():
    with pytest.raises(ClusterError, match=r"`PMI_SIZE` must be set .* missing\. Pass the"):
        rank_and_size({"PMI_RANK": "0"}, "PMI_RANK", "PMI_SIZE")


def test_a_world_of_no_rank_is_refused():
    with pytest.raises(ClusterError, match="`PMI_SIZE` must be a whole number of at least 1"):
        rank_and_size({"PMI_RANK": "0", "PMI_SIZE": "0"}, "PMI_RANK", "PMI_SIZE")


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ClusterError, match="`PMI_RANK` must be below `PMI_SIZE`=2, but is 2"):
        rank_and_size({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK", "PMI_SIZE")


def test_an_empty_coordinator_is_none():
    assert chosen_coordinator({"TFDP_COORDINATOR": ""}, rank=0) is None
    assert chosen_coordinator({}, rank=0) is None


def test_a_malformed_coordinator_names_its_variable_and_the_rank():
    with pytest.raises(ClusterError) as error:
        chosen_coordinator({"TFDP_COORDINATOR": "node-1"}, rank=3)
    assert "Rank 3: `TFDP_COORDINATOR` must be host:port" in str(error.value)
    assert "'node-1'" in str(error.value)


@given(st.lists(st.one_of(st.integers(), st.text())))
def test_derived_ports_are_in_their_range_and_the_same_for_all(shared):
    assert 20000 <= derived_port(*shared) < 60000
    assert derived_port(*shared) == derived_port(*shared)


def test_neighbouring_jobs_have_different_ports():
    ports = {derived_port("slurm", job, step) for job in range(20) for step in range(5)}
    assert len(ports) > 95
