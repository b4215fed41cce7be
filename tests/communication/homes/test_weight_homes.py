"""Ranks exchange weights with their homes, and a replay of the arrivals gives the same weights."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import asynchronous_replay
import meeting
import numpy as np
import pytest

from tfdp.communication.homes import OuterUpdate, WeightHomes
from tfdp.communication.homes.shard_home import Event
from tfdp.errors import CollectiveTimeoutError, RankLostError, RankMismatchError

SIZE = 10
SECONDS = 300.0  # for what comes at once, but on a machine that does much else


def trained(rank, number, weights):
    """What a rank makes of weights in a round."""
    rng = np.random.default_rng((rank, number))
    return 0.8 * weights + rng.normal(size=len(weights))


def begin(rank):
    return np.full(SIZE, rank + 1, np.float32)


def made(rank, addresses, staleness=2, rate=1.0, momentum=0.0, seconds=SECONDS, **options):
    update = OuterUpdate(len(addresses), rate, momentum)
    homes = WeightHomes(rank, addresses, update, staleness, seconds, SECONDS, "a secret", **options)
    homes.record()
    return homes


def addresses_of(count):
    return [f"127.0.0.1:{port}" for port in meeting.free_ports(count)]


def on_ranks(count, run, **options):
    """Runs a function of each rank's homes in a thread of its own; returns what they return."""
    addresses = addresses_of(count)
    over = threading.Barrier(count)

    def of_rank(rank):
        homes = made(rank, addresses, **options)
        try:
            homes.wait_for_all("records")
            return run(homes)
        finally:
            over.wait(SECONDS)
            homes.close()

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(of_rank, range(count)))


def train(homes, rounds, before=lambda number: None):
    """Trains for so many rounds, and returns the weights with which the training ends."""
    weights = homes.begin("w", begin(homes.rank))
    for number in range(1, rounds + 1):
        before(number)
        ends = np.float32(trained(homes.rank, number, weights))
        last = number == rounds
        weights = homes.end({"w": ends})["w"] if last else homes.exchange("w", ends)
    return weights


@pytest.mark.parametrize(
    ("count", "rate", "momentum"), [(3, 0.7, 0.5), (1, 1.0, 0.0), (2, 1.0, 0.0)]
)
def test_weights_are_those_of_a_replay_in_the_order_of_arrival(count, rate, momentum):
    def run(homes):
        weights = train(homes, 6)
        return weights, homes.events("w")

    found = on_ranks(count, run, rate=rate, momentum=momentum)
    for weights, events in found:
        np.testing.assert_array_equal(weights, found[0][0])
        assert events == found[0][1]
    expected = asynchronous_replay.replay(found[0][1], begin(0), trained, count, rate, momentum)
    np.testing.assert_allclose(found[0][0], expected, rtol=1e-5, atol=1e-5)


def test_one_rank_alone_trains_as_without_homes():
    (weights,) = on_ranks(1, lambda homes: train(homes, 5))
    expected = begin(0)
    for number in range(1, 6):
        expected = trained(0, number, expected)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_each_rank_is_the_home_of_a_shard():
    def run(homes):
        train(homes, 3)
        return sum(homes.staleness("w").values())

    assert on_ranks(3, run) == [9, 9, 9]  # each has 3 changes of 3 ranks


@pytest.mark.parametrize("staleness", [1, 3])
def test_a_rank_that_is_too_far_ahead_waits(staleness):
    """Rank 1 goes on once rank 0 has said that it has had as many rounds as it may."""
    ahead, checked = threading.Semaphore(0), threading.Event()
    done = []

    def run(homes):
        if homes.rank == 1:
            weights = homes.begin("w", begin(1))
            for _ in range(staleness):
                assert ahead.acquire(timeout=SECONDS)
            assert checked.wait(SECONDS)
            for _ in range(3):
                weights = homes.exchange("w", weights)
            return homes.end({"w": weights})["w"]
        weights = homes.begin("w", begin(0))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for number in range(staleness):
                weights = homes.exchange("w", weights)
                done.append(number)
                ahead.release()
            waits = pool.submit(homes.exchange, "w", weights)
            with pytest.raises(concurrent.futures.TimeoutError):
                waits.result(0.5)  # the other has had no round: this one would be too many
            checked.set()
            weights = waits.result(SECONDS)
        return homes.end({"w": weights})["w"]

    one, other = on_ranks(2, run, staleness=staleness)
    np.testing.assert_array_equal(one, other)
    assert len(done) == staleness


def test_a_rank_that_ends_one_training_holds_up_no_round_of_another():
    """As of two optimizers: it waits for the other rank, which would wait for a round of it."""

    def run(homes):
        weights = {name: homes.begin(name, begin(0)) for name in ("w", "v")}
        for _ in range(4 * homes.rank):
            weights = {name: homes.exchange(name, each + 1) for name, each in weights.items()}
        found = {name: homes.end({name: each})[name] for name, each in weights.items()}
        found["v"] = homes.end({"v": homes.exchange("v", found["v"])})["v"]
        return {name: each.tolist() for name, each in found.items()}, homes.alive()

    one, other = on_ranks(2, run, staleness=1)
    assert one == other == ({name: [1 + 4 / 2] * SIZE for name in ("w", "v")}, [0, 1])


def test_what_no_rank_has_changed_is_nobodys():
    def run(homes):
        weights = {name: homes.begin(name, begin(0)) for name in ("w", "v")}
        ends = {"w": weights["w"] + 1 if homes.rank else None, "v": None}
        return [None if each is None else each.tolist() for each in homes.end(ends).values()]

    assert on_ranks(2, run) == [[[1.5] * SIZE, None]] * 2


def test_all_ranks_get_the_mean_of_what_each_has_and_equal_values_stay_as_they_are():
    equal = np.float32(0.94708097)  # three times that, divided by three, is another number
    assert np.mean(np.full((3, 1), equal), 0) != equal

    def run(homes):
        given = np.float32([homes.rank, equal])
        return [homes.mean("state", given).tolist(), homes.mean("state", 2 * given).tolist()]

    assert on_ranks(3, run) == [[[1.0, equal], [2.0, 2 * equal]]] * 3


def test_parts_are_taken_in_turn_and_once():
    def run(homes):
        last, taken = -1, []
        while last < 20:
            last = homes.turn("data 0", 0, last)
            taken.append(last)
        return taken

    taken = on_ranks(3, run)
    assert sorted(itertools.chain.from_iterable(taken))[:21] == list(range(21))
    assert all(each == sorted(each) for each in taken)


def test_passes_that_begin_with_other_values_are_an_error_on_all_ranks():
    both = threading.Barrier(2)

    def run(homes):
        assert homes.turn("data 0", 0, -1, first=7) >= 0
        both.wait(SECONDS)
        with contextlib.suppress(RankMismatchError):  # of the other, which has begun before
            homes.turn("data 0", 1, -1, first=homes.rank)
        both.wait(SECONDS)
        told = []
        for each in (lambda: homes.turn("data 0", 1, 5), lambda: homes.wait_for_all("a meeting")):
            with pytest.raises(RankMismatchError) as raised:
                each()
            told.append(str(raised.value))
        return told

    for rank, told in enumerate(on_ranks(2, run)):
        for text in told:
            assert text.startswith(f"Rank {rank}: ranks ")
            assert "must read the data of `fit` in one order" in text


def test_models_that_begin_with_other_fixed_weights_are_an_error_on_all_ranks():
    both = threading.Barrier(2)

    def run(homes):
        homes.compare_state("data 0", 7)
        both.wait(SECONDS)
        homes.check()
        homes.compare_state("data 1", homes.rank)
        both.wait(SECONDS)
        with pytest.raises(RankMismatchError, match="begin with the same values") as raised:
            homes.check()
        return str(raised.value)[: len("Rank 0: ranks ")]

    assert on_ranks(2, run) == ["Rank 0: ranks ", "Rank 1: ranks "]


def test_the_others_go_on_without_a_rank_that_drops_out():
    left = threading.Event()

    def run(homes):
        weights = homes.begin("w", begin(0))
        homes.wait_for_all("the beginning")
        if homes.rank == 1:
            homes.drop_out("its `fit` ended with ValueError: no more")
            left.set()
            for each in (lambda: homes.end({"w": weights}), homes.check):
                with pytest.raises(RankLostError, match=r"ValueError: no more\. Start it again"):
                    each()
            return None
        assert left.wait(SECONDS)
        for number in 1, 2:
            weights = homes.end({"w": weights + number})["w"]
        return weights.tolist(), homes.alive()

    one, other, third = on_ranks(3, run)
    assert other is None and one == third
    assert one[0] == pytest.approx([1 + 2 * (1 + 2) / 3] * SIZE)  # rank 1 still counts as a third
    assert one[1] == [0, 2]


def test_a_rank_that_gives_no_news_is_given_up_and_told():
    def run(homes):
        weights = homes.begin("w", begin(homes.rank))
        if homes.rank == 1:
            assert given_up.wait(SECONDS)
            with pytest.raises(
                RankLostError, match=r"Rank 1: rank 0 has given this rank up: a round"
            ):
                homes.exchange("w", weights)
            return None
        for _ in range(4):
            weights = homes.exchange("w", weights)
        given_up.set()
        assert homes.alive() == [0]
        return homes.end({"w": weights})["w"]

    given_up = threading.Event()
    on_ranks(2, run, seconds=3.0)


def test_weights_that_rank_0_does_not_bring_are_an_error():
    waited = threading.Event()

    def run(homes):
        if homes.rank == 0:
            assert waited.wait(SECONDS)
            return
        with pytest.raises(
            CollectiveTimeoutError, match="rank 0 must bring the first weights of w"
        ):
            homes.begin("w", begin(1))
        waited.set()

    on_ranks(2, run, seconds=2.0)


# ---- processes, of which some are killed


def of_process(rank, addresses, folder, rounds, dies_at, restarted):
    """A rank in a process of its own; see `start`."""
    homes = made(rank, addresses, there=restarted)
    if restarted is None:
        homes.wait_for_all("records")
    folder = pathlib.Path(folder)

    def before(number):
        if number != dies_at:
            return

        async def die():  # in the loop's thread, where nothing happens at the homes meanwhile
            shards = homes._here.weights["w"].homes
            text = json.dumps({shard: home.events for shard, home in shards.items()})
            folder.joinpath(f"events of {rank}").write_text(text)
            os.kill(os.getpid(), signal.SIGKILL)

        homes._peers.run(die())

    weights = train(homes, rounds, before)
    told = {"weights": weights.tolist(), "events": homes.events("w"), "alive": homes.alive()}
    folder.joinpath(f"rank {rank}").write_text(json.dumps(told))
    homes.wait_for_all("the files")
    homes.close()


def start(rank, addresses, folder, rounds=8, dies_at=None, restarted=None):
    given = json.dumps([rank, addresses, str(folder), rounds, dies_at, restarted])
    script = (
        "import json; from communication.homes import test_weight_homes as tests; "
        f"tests.of_process(*json.loads({given!r}))"
    )
    tests = pathlib.Path(__file__).parents[2]
    paths = os.pathsep.join([str(tests), *sys.path])
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, "-c", script], env=environ)


def ended(processes):
    return [process.wait(SECONDS) for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize("dies", [2, 0])
def test_the_others_go_on_without_a_rank_that_is_killed(tmp_path, dies):
    addresses = addresses_of(3)
    ranks = [
        start(rank, addresses, tmp_path, dies_at=3 if rank == dies else None) for rank in range(3)
    ]
    codes = ended(ranks)
    assert codes == [-signal.SIGKILL if rank == dies else 0 for rank in range(3)]
    left = [rank for rank in range(3) if rank != dies]
    told = [json.loads(tmp_path.joinpath(f"rank {rank}").read_text()) for rank in left]
    assert told[0] == told[1] | {"events": told[0]["events"]}
    assert told[0]["alive"] == left
    events = [[Event(*each) for each in queue] for queue in told[0]["events"]]
    before = json.loads(tmp_path.joinpath(f"events of {dies}").read_text())[str(dies)]
    assert events[dies][0].kind == "adopted"
    events[dies] = [Event(*each) for each in before] + events[dies]
    expected = asynchronous_replay.replay(events, begin(0), trained, 3)
    np.testing.assert_allclose(told[0]["weights"], expected, rtol=1e-4, atol=1e-5)
