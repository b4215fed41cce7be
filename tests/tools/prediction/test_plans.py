"""The step of a plan: buckets, sums and the slowest rank, against closed forms and draws."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp import topology
from tfdp.tools.prediction import ClusterModel, Normalized, Plan, Workload, even_tensors, predict
from tfdp.tools.prediction.plans import replay, slowest
from tfdp.tools.prediction.sending import COMPRESSIONS, Sum, sum_of
from tfdp.tools.prediction.workload import GradientTensor, buckets

SIZES = st.integers(10**5, 10**9)
RANKS = st.integers(2, 48)
LATENCIES = st.floats(0, 1e-2)
RATES = st.floats(1e6, 1e11)


def a_sum(name, elements, ranks, links, per_host=1):
    """The sum of one gradient of so many numbers."""
    on = ClusterModel(ranks, per_host, links)
    return sum_of([GradientTensor((elements,))], on, name, COMPRESSIONS["none"])


@pytest.mark.parametrize("name", ["ring", "direct"])
@given(RANKS, SIZES, LATENCIES, RATES)
def test_a_sum_takes_its_closed_form(name, ranks, elements, latency, rate):
    """2(n-1)/n of the bytes, in 2(n-1) messages around a ring and in two directly."""
    links = topology.Links(latency, rate, latency, rate)
    messages = {"ring": 2 * (ranks - 1), "direct": 2}[name]
    expected = messages * latency + 2 * (ranks - 1) / ranks * 4 * elements / rate
    assert a_sum(name, elements, ranks, links).seconds == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("core", "seconds"), [(1e-10, 4e-3), (1e-8, 80e-3)])
def test_a_core_moves_bytes_while_the_link_does(core, seconds):
    """4 MB to the other rank and from it: 4 ms of the link, and 8 MB for the core."""
    links = topology.Links(0, 1e9, 0, 1e9, core_seconds_per_byte=core)
    found = a_sum("direct", 10**6, 2, links)
    assert (found.seconds, found.busy_seconds) == pytest.approx((seconds, seconds))


def test_each_slice_of_a_buffer_starts_operations_of_its_own():
    """Direct, two ranks: a send and a receive in each of two steps, for four slices."""
    found = a_sum("direct", 2**20, 2, topology.Links(0, 1e12, 0, 1e12, operation_seconds=1.0))
    assert found.busy_seconds == pytest.approx(4 * 4)
    assert found.seconds == pytest.approx(4 + 3 / 4 * 16, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "share"),
    [("direct", 2 * 8 * 8 / 16), ("hierarchical", 2 * 1 / 2)],
)
def test_ranks_of_a_host_share_its_link(name, share):
    """Directly each of 8 ranks sends 8 others a 16th, twice, through one card."""
    found = a_sum(name, 10**7, 16, topology.Links(0, 1e12, 0, 1e9), per_host=8)
    assert found.seconds == pytest.approx(share * 4e7 / 1e9, rel=1e-2)


SUMS = st.lists(
    st.tuples(
        st.floats(0, 10),
        st.builds(
            lambda core, busy, wait, in_turn: Sum(core, busy, busy + wait, in_turn),
            st.floats(0, 1),
            st.floats(0, 5),
            st.floats(0, 5),
            st.booleans(),
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(SUMS)
def test_no_bucket_moves_before_it_is_there_and_no_two_at_a_time(arrivals):
    ended = replay(arrivals)
    assert len(ended) == len(arrivals)
    core = sum(sum_.core_seconds for _, sum_ in arrivals)
    busy = sum(sum_.busy_seconds for _, sum_ in arrivals)
    total = sum(sum_.seconds for _, sum_ in arrivals)
    last = max(ended)
    assert last >= max(ready + sum_.core_seconds + sum_.seconds for ready, sum_ in arrivals) - 1e-9
    assert last >= min(ready for ready, _ in arrivals) + busy - 1e-9
    assert last <= max(ready for ready, _ in arrivals) + core + total + 1e-9


def test_buckets_in_turn_do_not_overlap_and_others_do():
    turns = [(0.0, Sum(0.0, 1.0, 3.0, True))] * 4
    assert max(replay(turns)) == 12.0
    assert max(replay([(0.0, Sum(0.0, 1.0, 3.0))] * 4)) == 6.0


@pytest.mark.parametrize("name", ["direct", "native", "halving_doubling", "tree", "auto"])
def test_a_rank_s_core_moves_one_bucket_s_bytes_at_a_time(name):
    """Two hosts: a core sends and receives all 16 MB of the 16 buckets, at 1 ns a byte."""
    links = topology.Links(0, 1e12, 0, 1e12, core_seconds_per_byte=1e-9)
    found = predict(Plan(name, 2**20), work(backward_seconds=0.0), ClusterModel(2, 1, links))
    assert found.communication_seconds >= 2 * 16e6 * 1e-9 * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [(2, 1), (8, 4)])
def test_auto_and_what_it_chooses_take_the_same(ranks):
    """Steps of an operation that cost much: `Native` is chosen for all sizes."""
    on = ClusterModel(*ranks, topology.Links(1e-4, 1e9, 1e-4, 1e9, 1.0, 0.0))
    steps = [predict(Plan(name, 2**20), work(), on).step_seconds for name in ("auto", "native")]
    assert steps[0] == steps[1]


def work(**changed):
    values = {"forward_seconds": 0.1, "backward_seconds": 0.2, "batch": 8}
    return Workload(even_tensors(4_000_000, 16), **values | changed)


def cluster(ranks=4, rate=1e9, latency=0.0):
    return ClusterModel(ranks, 1, topology.Links(latency, rate, latency, rate))


def test_all_at_once_nothing_is_hidden():
    """One tensor: its gradient is there when the backward pass has ended."""
    one = Workload((GradientTensor((1000, 4000)),), 0.1, 0.2)
    found = predict(Plan("ring"), one, cluster(rate=1e8))
    assert found.communication_seconds == pytest.approx(1.5 * 16e6 / 1e8, rel=1e-3)


def test_the_whole_batch_s_statistics_hold_up_both_passes():
    on = cluster(latency=1e-3)
    plain, both = Normalized(64), Normalized(64, is_plain=False)

    def sending(normalized, **plan):
        return predict(
            Plan("direct", **plan), work(normalized=normalized), on
        ).communication_seconds

    without = sending(())
    # A message there and one back for each of two sums a layer.
    assert sending((plain,) * 3) - without == pytest.approx(3 * 2 * 2e-3, rel=1e-2)
    assert sending((plain,) * 3, batch_normalization="per_replica") == without
    assert sending((both,), batch_normalization="per_replica") > without
    assert not Plan(batch_normalization="per_replica").is_exact


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
    table = GradientTensor((50_000, 100), rows=64)
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
        return predict(plan, work(), ClusterModel(*ranks, links)).step_seconds

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
    each = predict(Plan("ring", 2**20), work(), cluster(rate=1e7))
    window = predict(Plan("ring", 2**20, accumulation=10), work(), cluster(rate=1e7))
    assert ten.communication_seconds == pytest.approx(one.communication_seconds / 10, rel=1e-2)
    assert window.communication_seconds == pytest.approx(each.communication_seconds / 10, rel=1e-2)


def test_what_is_delayed_takes_the_longer_of_its_sum_and_the_step():
    """16 MB between 4 hosts: 6/4 of them at 10 MB/s, 2.4 s, of which a plain step hides less."""
    plan, on = Plan("ring", 2**20, synchronization="delayed"), cluster(4, rate=1e7)
    for forward, backward, exposed in ((0.1, 0.2, 2.1), (1.0, 1.0, 0.4), (1.0, 3.0, 0.0)):
        busy = work(forward_seconds=forward, backward_seconds=backward)
        found, plain = predict(plan, busy, on), predict(Plan("ring", 2**20), busy, on)
        assert found.communication_seconds == pytest.approx(exposed, abs=0.02)
        assert found.communication_seconds < plain.communication_seconds
        assert found.memory.total - plain.memory.total == 16e6
    assert not plan.is_exact
    assert "synchronization=tfdp.synchronization.Delayed()" in plan.written()


def test_an_update_without_the_last_rank_waits_for_the_one_before_and_counts_fewer_examples():
    """An oracle draws the times of ranks, and takes the largest but one."""
    plan = Plan("ring", 2**20, synchronization="backup")
    uneven = work(forward_seconds=1.0, backward_seconds=1.0, deviation=0.2)
    draws = np.random.default_rng(0).lognormal(sigma=0.2, size=(100_000, 8)) / np.exp(0.02)
    for ranks in (2, 8):
        found = predict(plan, uneven, cluster(ranks))
        expected = 2.0 * np.sort(draws[:, :ranks], 1)[:, ranks - 2].mean()
        assert found.compute_seconds + found.late_seconds == pytest.approx(expected, rel=0.02)
        assert found.examples == (ranks - 1) * uneven.batch
        assert found.late_seconds < predict(Plan(), uneven, cluster(ranks)).late_seconds
    assert not plan.is_exact
    assert "synchronization=tfdp.synchronization.BackupWorkers(1)" in plan.written()


def test_ranks_that_train_apart_wait_for_nobody():
    """16 MB between 4 hosts: 6/4 of them at 10 MB/s, 2.4 s, once in 10 updates."""
    plan, on = Plan(synchronization="asynchronous", every=10), cluster(4, rate=1e7)
    found = predict(plan, work(deviation=0.1), on)
    assert found.late_seconds == 0.0
    assert found.communication_seconds == pytest.approx(0.24, rel=0.02)
    assert not plan.is_exact
    assert "synchronization=tfdp.synchronization.Asynchronous(10)" in plan.arguments()


def test_shards_get_their_parts_of_sums_and_then_the_others_weights():
    """8 hosts, no latency: halves of 7/8 of 16 MB each; the second is hidden by nothing."""
    on, half = cluster(8, rate=1e7), 7 / 8 * 16e6 / 1e7
    sharded = work(backward_seconds=0.0, update_seconds=0.8)
    for shard, accumulation, halves in [
        ("optimizer", 1, 2),
        ("gradients", 1, 2),
        ("optimizer", 4, 2 / 4),
        ("gradients", 4, 5 / 4),  # (k + 1) / 2 times as much as a window sends without
    ]:
        found = predict(Plan(shard=shard, accumulation=accumulation), sharded, on)
        assert found.communication_seconds == pytest.approx(halves * half, rel=1e-3)
        assert found.update_seconds == pytest.approx(0.8 / 8 / accumulation)
    hidden = predict(Plan(shard="optimizer"), work(backward_seconds=100.0), on)
    assert hidden.communication_seconds > half


def test_weights_that_are_cut_are_gathered_in_both_passes():
    """Three halves of a sum, of which passes hide all but a first gather and a last scatter."""
    on, half = cluster(8, rate=1e7), 7 / 8 * 16e6 / 1e7
    for accumulation in (1, 4):  # each micro-batch needs the weights
        plan = Plan(shard="parameters", accumulation=accumulation)
        seen = predict(plan, work(forward_seconds=0.0, backward_seconds=0.0), on)
        assert seen.communication_seconds == pytest.approx(3 * half, rel=1e-3)
    plan = Plan(bucket_bytes=2**20, shard="parameters")
    hidden = predict(plan, work(forward_seconds=100.0, backward_seconds=100.0), on)
    assert 0 < hidden.communication_seconds < half
    half_hidden = predict(plan, work(forward_seconds=half / 2, backward_seconds=2 * half), on)
    assert half_hidden.communication_seconds == pytest.approx(
        half / 2 + hidden.communication_seconds, rel=0.2
    )


def rates(**rate):
    """The compressions of a plan, with other rates of a core."""
    return {
        name: dataclasses.replace(COMPRESSIONS[name], gigabytes_per_second=each)
        for name, each in rate.items()
    }


@pytest.mark.parametrize(("name", "share"), [("bfloat16", 1 / 2), ("int8", 1 / 4 + 1 / 256)])
def test_a_compression_acts_on_the_half_that_has_sums(name, share):
    """Of 16 MB on 8 hosts a rank sends 7/8 of the share, and 7/8 of the weights as they are."""
    on, half = cluster(8, rate=1e7), 7 / 8 * 16e6 / 1e7
    for shard, accumulation, sums, gathers in [
        ("optimizer", 1, 1, 1),
        ("optimizer", 4, 1 / 4, 1 / 4),
        ("gradients", 4, 1, 1 / 4),
        ("parameters", 4, 1, 2),
    ]:
        plan = Plan(shard=shard, compression=name, accumulation=accumulation)
        at_once = work(forward_seconds=0.0, backward_seconds=0.0)
        sent, computed = (
            predict(plan, at_once, on, rates(**{name: rate})[name]).communication_seconds
            for rate in (None, 1e-3)
        )
        assert sent == pytest.approx(sums * share * half + gathers * half, rel=1e-3)
        # A core takes 16 seconds, while which the links send all but the last.
        assert 16 * sums + gathers * half < computed <= 16 * sums + sent + 1e-6


def test_what_waits_for_the_backward_pass_is_hidden_by_nothing():
    on, half = cluster(8, rate=1e7), 7 / 8 * 16e6 / 1e7
    slow = work(forward_seconds=100.0, backward_seconds=100.0)
    for shard, gathered in [("optimizer", half), ("parameters", 0.0)]:
        cast, int8 = (
            predict(
                Plan(bucket_bytes=2**20, shard=shard, compression=name), slow, on, each
            ).communication_seconds
            for name, each in rates(bfloat16=None, int8=None).items()
        )
        assert int8 - gathered > (1 / 4 + 1 / 256) * half
        assert cast - gathered < 0.2 * half


def test_one_rank_has_nothing_to_shard():
    found = predict(Plan(shard="optimizer"), work(), cluster(1))
    assert found.plan.arguments() == [] and found.communication_seconds == 0


def test_a_table_s_shards_are_gathered_whole():
    tables = Workload((GradientTensor((50_000, 100), rows=64),), 0.0, 0.0)
    found = predict(Plan(shard="optimizer"), tables, cluster(rate=1e7))
    assert found.communication_seconds == pytest.approx(3 * (64 * 408 + 5e6) / 1e7, rel=1e-3)


def test_powersgd_sends_factors_of_a_model_of_which_the_size_is_all_that_is_known():
    """Gradients of 500 x 500: four columns of 1000 numbers in place of 250,000."""
    found = predict(Plan("ring", 2**20, "powersgd"), work(), cluster(rate=1e7))
    assert found.communication_seconds == pytest.approx(1.5 * 16e6 * 4000 / 250_000 / 1e7, rel=0.1)


@pytest.mark.parametrize(("ranks", "deviation"), [(2, 0.1), (16, 0.05), (256, 0.2)])
def test_it_is_the_mean_of_drawn_maxima(ranks, deviation):
    draws = np.random.default_rng(0).lognormal(0, deviation, (20_000, ranks))
    assert slowest(ranks, deviation) == pytest.approx(draws.max(1).mean() / draws.mean(), rel=5e-3)


def test_one_rank_waits_for_nobody():
    assert slowest(1, 0.5) == 1.0
