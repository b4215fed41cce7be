"""The replay of buckets and the time of a sum, against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp import topology
from tfdp.prediction import Cluster, Plan, Workload, even_tensors, predict
from tfdp.prediction.replay import replay
from tfdp.prediction.sending import COMPRESSIONS, Sum, sum_of
from tfdp.prediction.workload import Tensor, buckets

SIZES = st.integers(10**5, 10**9)
RANKS = st.integers(2, 4096)
LATENCIES = st.floats(0, 1e-2)
RATES = st.floats(1e6, 1e11)


@given(RANKS, SIZES, LATENCIES, RATES)
def test_a_ring_takes_its_closed_form(ranks, elements, latency, rate):
    """2(n-1) messages, and 2(n-1)/n of the bytes."""
    links = topology.Links(latency, rate, latency, rate)
    found = sum_of([Tensor((elements,))], Cluster(ranks, 1, links), "ring", COMPRESSIONS["none"])
    expected = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * 4 * elements / rate
    assert found.seconds == pytest.approx(expected, rel=1e-6)


@given(RANKS, SIZES, LATENCIES, RATES)
def test_a_direct_sum_has_the_ring_s_bytes_in_two_steps(ranks, elements, latency, rate):
    links = topology.Links(latency, rate, latency, rate)
    found = sum_of([Tensor((elements,))], Cluster(ranks, 1, links), "direct", COMPRESSIONS["none"])
    expected = 2 * latency + 2 * (ranks - 1) / ranks * 4 * elements / rate
    assert found.seconds == pytest.approx(expected, rel=1e-6)


def test_ranks_of_a_host_share_its_link():
    """Direct: each of 8 ranks sends 8 others a 16th, twice, through one card."""
    links = topology.Links(0, 1e12, 0, 1e9)
    found = sum_of([Tensor((10**7,))], Cluster(16, 8, links), "direct", COMPRESSIONS["none"])
    assert found.seconds == pytest.approx(2 * 8 * 8 / 16 * 4e7 / 1e9, rel=1e-2)
    levels = sum_of([Tensor((10**7,))], Cluster(16, 8, links), "hierarchical", COMPRESSIONS["none"])
    assert levels.seconds == pytest.approx(2 * 1 / 2 * 4e7 / 1e9, rel=1e-2)


SUMS = st.lists(
    st.tuples(
        st.floats(0, 10),
        st.builds(
            lambda core, link, wait: Sum(core, link, link + wait, 0.0),
            st.floats(0, 1),
            st.floats(0, 5),
            st.floats(0, 5),
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(SUMS, st.booleans())
def test_no_bucket_moves_before_it_is_there_and_no_two_at_a_time(arrivals, in_turn):
    sent = replay(arrivals, in_turn)
    assert len(sent) == len(arrivals)
    assert all(one.begun >= one.ready for one in sent)
    core = sum(sum_.core_seconds for _, sum_ in arrivals)
    begun = [one.begun for one in sent]
    assert begun == sorted(begun)
    busy = sum(sum_.link_seconds for _, sum_ in arrivals)
    last = max(one.ended for one in sent)
    assert last >= max(ready + sum_.seconds for ready, sum_ in arrivals) - 1e-9
    first = min(ready for ready, _ in arrivals)
    assert last >= first + busy - 1e-9
    if in_turn:
        total = sum(sum_.seconds for _, sum_ in arrivals)
        assert last <= max(ready for ready, _ in arrivals) + core + total + 1e-9


def work(**changed):
    values = {"forward_seconds": 0.1, "backward_seconds": 0.2, "batch": 8}
    return Workload(even_tensors(4_000_000, 16), **values | changed)


def cluster(ranks=4, rate=1e9, latency=0.0):
    return Cluster(ranks, 1, topology.Links(latency, rate, latency, rate))


def test_all_at_once_nothing_is_hidden():
    """One tensor: its gradient is there when the backward pass has ended."""
    one = Workload((Tensor((1000, 4000)),), 0.1, 0.2)
    found = predict(Plan("ring"), one, cluster(rate=1e8))
    assert found.communication_seconds == pytest.approx(1.5 * 16e6 / 1e8, rel=1e-3)
    assert found.hidden_seconds == pytest.approx(0, abs=1e-9)


def test_on_fast_links_all_but_the_last_bucket_is_hidden():
    found = predict(Plan("ring", 2**20), work(), cluster(rate=1e10))
    last = buckets(work().tensors, 2**20)[-1].size_bytes
    assert found.communication_seconds == pytest.approx(1.5 * last / 1e10, rel=1e-2)


def test_on_slow_links_the_links_are_busy_from_the_first_bucket_on():
    found = predict(Plan("ring", 2**20), work(), cluster(rate=1e7))
    first = buckets(work().tensors, 2**20)[0].ready
    whole = 1.5 * 16e6 / 1e7
    expected = 0.1 + first * 0.2 + whole - 0.3
    assert found.communication_seconds == pytest.approx(expected, rel=1e-3)


def test_an_update_s_compression_waits_for_the_backward_pass():
    found = predict(Plan("ring", 2**20, "int8"), work(), cluster(rate=1e7))
    codes = 1.5 * 16e6 * (1 / 4 + 1 / 256) / 1e7
    assert found.communication_seconds == pytest.approx(codes, rel=0.05)


def test_rows_of_a_table_are_collected_and_not_summed():
    """64 rows of 100 numbers and 8 bytes go around a ring of 4, three times."""
    table = Tensor((50_000, 100), rows=64)
    found = sum_of([table], cluster(rate=1e7), "ring", COMPRESSIONS["none"])
    assert found.seconds == pytest.approx(3 * 64 * 408 / 1e7)


@given(
    st.sampled_from(["native", "direct", "halving_doubling", "tree", "torus", "hierarchical"]),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (8, 4), (64, 8)]),
    st.floats(1e6, 1e10),
    st.floats(0, 1e-3),
    st.sampled_from(["none", "bfloat16", "int8", "topk", "powersgd"]),
)
def test_better_links_never_take_longer(name, ranks, rate, latency, compression):
    plan = Plan(name, 2**20, compression)

    def step(rate, latency):
        links = topology.Links(latency, 10 * rate, latency, rate)
        return predict(plan, work(), Cluster(*ranks, links)).step_seconds

    now = step(rate, latency)
    assert math.isfinite(now) and now >= 0.3
    assert step(2 * rate, latency) <= now * (1 + 1e-9)
    assert step(rate, latency / 2) <= now * (1 + 1e-9)


def test_more_deviation_and_more_ranks_wait_longer():
    late = [
        predict(Plan("direct"), work(deviation=deviation), cluster(ranks)).late_seconds
        for deviation, ranks in [(0.0, 64), (0.05, 2), (0.05, 64), (0.1, 64)]
    ]
    assert late == sorted(late) and late[0] == 0.0


def test_a_window_and_a_round_send_once():
    one = predict(Plan("ring", 2**20, "none", "local_sgd", 1), work(), cluster(rate=1e7))
    ten = predict(Plan("ring", 2**20, "none", "local_sgd", 10), work(), cluster(rate=1e7))
    window = predict(Plan("ring", 2**20, accumulation=10), work(), cluster(rate=1e7))
    assert ten.communication_seconds == pytest.approx(one.communication_seconds / 10, rel=1e-2)
    assert ten.host_bytes == pytest.approx(one.host_bytes / 10)
    assert window.host_bytes == pytest.approx(one.host_bytes / 10)
