"""`tfdp run --nodes`: launchers that meet, start and end their ranks together."""

import asyncio
import contextlib
import pathlib
import re
import signal
import socket
import time

import meeting
import numpy as np
import pytest
import tiers

from tfdp.cluster.connections import Connections
from tfdp.cluster.handshake import greet
from tfdp.cluster.launch.nodes import node_rendezvous
from tfdp.cluster.launch.nodes.decision import NodeEnd, decide
from tfdp.cluster.launch.nodes.messages import How
from tfdp.cluster.launch.nodes.node_rendezvous import Rendezvous, _JoinedNode
from tfdp.cluster.launch.restarting import Restarts
from tfdp.cluster.launch.run_options import RunOptions, Span

pytestmark = pytest.mark.multiprocess

SECRET = "correct horse battery staple"

TELLS = """
marked()
attempt = int(os.environ["TFDP_RESTART_COUNT"])
workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
print("attempt", attempt, "of", len(workers), *workers, flush=True)
"""

# What a training with a Checkpoint does: all ranks stop where one is asked to.
STOPPABLE = (
    TELLS
    + """
import pathlib
stop = pathlib.Path(f"stop-{attempt}")
signal.signal(signal.SIGUSR1, lambda *_: stop.touch())
signal.signal(signal.SIGTERM, lambda *_: stop.touch())
tell(can_stop=True)
pathlib.Path(f"trains-{attempt}-{rank}").touch()
def train(seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if stop.exists():
            sys.exit(75)
        time.sleep(0.02)
"""
)


@pytest.fixture
def address():
    return f"127.0.0.1:{meeting.free_ports(1)[0]}"


@pytest.fixture
def nodes(runs, address):
    """A function that starts a launcher of the same run."""

    def start(script, *words, n=1, nodes="2", secret=SECRET):
        words = ("-n", n, "--nodes", nodes, "--rendezvous", address, *words)
        is_first = not runs.launchers
        launcher = runs.start(*words, script, TFDP_SECRET=secret)
        deadline = time.monotonic() + 120
        while is_first and launcher.poll() is None:  # until it serves the rendezvous
            host, port = address.split(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return launcher

    return start


def attempts(run):
    return re.findall(r"\[(\d+)\] attempt (\d+) of (\d+)", run.out)


def test_the_ranks_of_all_nodes_are_one_cluster_and_start_again_together(
    runs, nodes, wait_until_ended
):
    script = TELLS + "if attempt == 0:\n if rank == 2: os._exit(7)\n time.sleep(600)\n"
    script = runs.script(script)
    launchers = [nodes(script, "--max-restarts", 1, n=2) for _ in range(2)]
    ended = [wait_until_ended(launcher) for launcher in launchers]
    assert [run.returncode for run in ended] == [0, 0], [run.err for run in ended]
    for attempt in "01":
        ranks = sorted(
            rank for run in ended for rank, a, of in attempts(run) if (a, of) == (attempt, "4")
        )
        assert ranks == list("0123")
    said = "".join(run.err for run in ended)
    assert said.count("rank 2 of 4 failed first, with exit code 7; all ranks start again") == 2
    assert said.count("2 attempts were made") == 2
    assert said.count("tfdp run: this node's ranks were ended: ") == 1
    assert said.count(" 4 ranks, after ") == 4  # in the summaries
    addresses = {line.split(" of 4 ")[1] for run in ended for line in run.out.splitlines()}
    assert len(addresses) == 2  # of the two attempts
    runs.assert_nobody_is_left()


def test_a_launcher_that_is_lost_ends_the_run_or_is_waited_for(runs, nodes, wait_until_ended):
    script = runs.script(STOPPABLE + "train(300 if attempt == 0 else 0)\n")
    first = nodes(script, "--max-restarts", 1)
    second = nodes(script, "--max-restarts", 1)
    runs.wait_for("trains-0-0", "trains-0-1")
    second.kill()
    third = nodes(script, "--max-restarts", 1)
    ended = [wait_until_ended(launcher) for launcher in (first, third)]
    assert [run.returncode for run in ended] == [0, 0], [run.err for run in ended]
    assert "the launcher was lost; all ranks start again in 1 s" in ended[0].err
    assert attempts(ended[1]) == [("1", "1", "2")]
    runs.assert_nobody_is_left()


def test_a_node_that_comes_is_let_in_at_a_checkpoint_and_one_that_leaves_is_done_without(
    runs, nodes, wait_until_ended
):
    script = runs.script(STOPPABLE + "train(300 if attempt < 2 else 0)\n")
    words = {"nodes": "1:2"}
    first = nodes(script, "--max-restarts", 1, **words)
    runs.wait_for("trains-0-0")
    second = nodes(script, "--max-restarts", 1, **words)
    runs.wait_for("trains-1-0", "trains-1-1")
    second.send_signal(signal.SIGTERM)
    ended = [wait_until_ended(launcher) for launcher in (first, second)]
    assert [run.returncode for run in ended] == [0, 75], ended[1].err
    assert [(a, of) for _, a, of in attempts(ended[0])] == [("0", "1"), ("1", "2"), ("2", "1")]
    assert "has left; the other nodes go on." in ended[0].err
    runs.assert_nobody_is_left()


TRAINS = """
import pathlib, sys
sys.path[:0] = [{tests!r}]
import keras
import numpy as np
import resumed_training


class Tells(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 3:
            pathlib.Path(f"step-{{attempt}}-{{rank}}").touch()
            if attempt == 0:
                resumed_training.until_asked()
            if attempt == 1:
                time.sleep(300)  # until the other is killed


values = resumed_training.train(
    f"kept-{{rank}}", devices=None, others=[Tells()], every_steps=2
)[0]
if rank == 0:
    np.savez("values.npz", *values)
"""


@pytest.mark.exhaustive(
    "callbacks/test_checkpoint_callback.py::"
    "test_ranks_that_start_again_after_a_kill_end_like_a_training_that_was_not_disturbed"
)
def test_a_training_on_1_2_and_1_nodes_ends_like_one_device(runs, nodes, wait_until_ended):
    import resumed_training  # here, as it imports TensorFlow

    tests = str(pathlib.Path(__file__).parent.parent.parent)
    script = runs.script(TELLS.replace("marked()", "") + TRAINS.format(tests=tests))
    first = nodes(script, "--max-restarts", 1, nodes="1:2")
    runs.wait_for("step-0-0")
    second = nodes(script, "--max-restarts", 1, nodes="1:2")
    runs.wait_for("step-1-0", "step-1-1")
    second.kill()
    run = wait_until_ended(first)
    assert run.returncode == 0, run.err
    assert [(a, of) for _, a, of in attempts(run)] == [("0", "1"), ("1", "2"), ("2", "1")]
    expected = resumed_training.train(None, devices=("CPU:0",))[0]
    with np.load(runs.folder / "values.npz") as values:
        for name, value in zip(values, expected, strict=True):
            difference = np.abs(values[name].astype("float64") - value).max()
            assert difference < 1e-5 * np.abs(expected[0]).max()


@pytest.mark.exhaustive("test_a_launcher_that_is_lost_ends_the_run_or_is_waited_for")
@pytest.mark.parametrize("how", ["is silent", "served the rendezvous"])
def test_another_takes_the_place_of_a_launcher_that(how, runs, nodes, wait_until_ended):
    script = runs.script(STOPPABLE + "train(300 if attempt == 0 else 0)\n")
    first = nodes(script, "--max-restarts", 1)
    second = nodes(script, "--max-restarts", 1)
    runs.wait_for("trains-0-0", "trains-0-1")
    lost, stays = (second, first) if how == "is silent" else (first, second)
    lost.send_signal(signal.SIGSTOP if how == "is silent" else signal.SIGKILL)
    third = nodes(script, "--max-restarts", 1)
    ended = [wait_until_ended(launcher) for launcher in (stays, third)]
    assert [run.returncode for run in ended] == [0, 0], [run.err for run in ended]
    said = "the launcher was lost" if how == "is silent" else "the rendezvous was lost; looks for"
    assert said in ended[0].err
    lost.kill()
    runs.assert_nobody_is_left()


@pytest.mark.parametrize(
    ("other", "words"),
    tiers.first_of(
        ({"n": 2}, r"`-n` must be alike on all nodes; received '1' at the rendezvous and '2'"),
        ({"nodes": "1:2"}, r"`nodes` must be alike on all nodes; received '2' at the"),
        ({"script": "other"}, r"`COMMAND` must be alike on all nodes; received"),
    ),
)
def test_options_that_differ_are_refused_by_name(runs, nodes, wait_until_ended, other, words):
    script = runs.script(TELLS)
    first = nodes(script, "--max-restarts", 1)
    second = nodes(
        (other.pop("script", "") and runs.script(TELLS)) or script, *("--max-restarts", 1), **other
    )
    refused = wait_until_ended(second)
    assert refused.returncode == 2
    assert re.search(words, refused.err), refused.err
    third = nodes(script, "--max-restarts", 1)
    assert [wait_until_ended(one).returncode for one in (first, third)] == [0, 0]


def test_a_node_with_another_secret_is_sent_away(runs, nodes, wait_until_ended):
    script = runs.script(TELLS)
    first = nodes(script)
    refused = wait_until_ended(nodes(script, secret="another secret of mine"))
    assert refused.returncode == 1
    assert "`TFDP_SECRET` must be the same on all nodes" in refused.err
    second = nodes(script)
    ended = [wait_until_ended(one) for one in (first, second)]
    assert [run.returncode for run in ended] == [0, 0]
    assert "a launcher from 127.0.0.1 has another; it was sent away." in ended[0].err


def test_a_node_that_does_not_come_is_told_after_a_deadline(runs, nodes, wait_until_ended):
    run = wait_until_ended(nodes(runs.script(TELLS), "--join-timeout", 1))
    assert run.returncode == 1
    assert "`nodes` must come within 1 s (`join-timeout`); received --nodes 2" in run.err
    assert run.out == ""


def test_without_anybody_at_the_rendezvous_the_node_is_told_so(runs, wait_until_ended):
    words = ("-n", 1, "--nodes", 2, "--rendezvous", "192.0.2.1:29400", "--join-timeout", 1)
    run = wait_until_ended(runs.start(*words, runs.script(TELLS), TFDP_SECRET=SECRET))
    assert run.returncode == 1
    assert "received 192.0.2.1:29400, and in 1 s nobody took this node in" in run.err


def test_a_rendezvous_that_lets_go_again_and_again_is_left_after_a_deadline(
    runs, nodes, address, wait_until_ended
):
    joins = []

    async def lets_go(reader, writer):
        joins.append(1)
        with contextlib.suppress(OSError):
            await greet((reader, writer), SECRET)
        writer.close()

    host, port = address.split(":")
    connections = Connections()
    server = connections.run(asyncio.start_server(lets_go, host, int(port)))
    try:
        run = wait_until_ended(nodes(runs.script(TELLS), "--join-timeout", 1))
    finally:
        connections.loop.call_soon_threadsafe(server.close)
        connections.close()
    assert run.returncode == 1
    assert "in 1 s nobody took this node in" in run.err
    assert 1 < len(joins) < 10


def test_a_signal_to_the_node_of_the_rendezvous_between_attempts_ends_all(
    runs, nodes, wait_until_ended
):
    script = runs.script(TELLS + "sys.exit(7)\n")
    launchers = [nodes(script, "--max-restarts", 3, nodes="1:2") for _ in range(2)]
    while b"start again in 2 s" not in launchers[0].stderr.readline():
        assert launchers[0].poll() is None
    launchers[0].send_signal(signal.SIGTERM)
    ended = [wait_until_ended(launcher) for launcher in launchers]
    assert [run.returncode for run in ended] == [143, 143], [run.err for run in ended]
    assert "the node of the rendezvous has ended: SIGTERM came" in ended[1].err
    assert "attempt 2" not in ended[1].out


def test_ranks_that_end_without_a_strategy_end_those_of_other_nodes(runs, nodes, wait_until_ended):
    script = runs.script("if rank == 1: sys.exit(0)\nmarked()\ntime.sleep(600)\n")
    launchers = [nodes(script, "--max-restarts", 1) for _ in range(2)]
    ended = [wait_until_ended(launcher) for launcher in launchers]
    assert [run.returncode for run in ended] == [1, 1], [run.err for run in ended]


@pytest.mark.parametrize(
    ("serves", "seconds", "waits"), [((False, False), 0.5, True), ((False, True), 600.0, False)]
)
def test_the_ranks_start_at_once_only_with_the_node_where_the_checkpoints_are(
    serves, seconds, waits
):
    async def gathered():
        one = Rendezvous.__new__(Rendezvous)
        one._options, one._seconds = options(Span(1, 2)), seconds
        one._changed = asyncio.Event()
        one._nodes = [_JoinedNode("n", each, 0, None, "h", [1]) for each in serves]
        return await asyncio.wait_for(one._gathered(), 60)

    began = time.monotonic()
    found = asyncio.run(gathered())
    assert len(found) == 2
    assert found[0].serves == any(serves)
    assert not waits or time.monotonic() - began >= seconds


def test_a_node_that_has_left_ends_the_ranks_of_others_after_a_while(monkeypatch):
    monkeypatch.setattr(node_rendezvous, "_FOLLOWING_SECONDS", 0.3)
    said = []

    class Told(_JoinedNode):
        def say(self, kind, **fields):
            said.append((kind, fields["reason"]))
            self.end = NodeEnd("b", How.TOLD, 1, "")

    async def until_ended():
        one = Rendezvous.__new__(Rendezvous)
        one._options, one._changed = options(Span(1, 2)), asyncio.Event()
        left = _JoinedNode("a", False, 0, None, "h", end=NodeEnd("a", How.LEFT, 143, "SIGTERM. It"))
        one._nodes = [left, Told("b", True, 0, None, "h")]
        return await one._until_ended(one._nodes)

    ends, _ = asyncio.run(until_ended())
    assert [end.how for end in ends] == [How.LEFT, How.TOLD]
    assert said == [("end", "a: SIGTERM")]


def test_launchers_need_a_secret(runs, address):
    words = ("-n", 1, "--nodes", 2, "--rendezvous", address)
    run = runs.run(*words, runs.script(TELLS))
    assert run.returncode == 1
    assert "`--nodes` must come with a secret" in run.err


def options(nodes=2, restarts=1):
    return RunOptions(1, ("x.py",), nodes=nodes, rendezvous="a:1", max_restarts=restarts)


WELL, STOPPED = NodeEnd("a", How.WELL, 0, ""), NodeEnd("a", How.STOPPED, 75, "stopped. At ...")
FAILED, LEFT = (
    NodeEnd("b", How.FAILED, 9, "rank 1 failed. ..."),
    NodeEnd("b", How.LEFT, 143, "SIGTERM"),
)
LOST = NodeEnd("c", How.FAILED, 1, "", lost=True)
OF_THAT = NodeEnd("d", How.FAILED, 1, "rank 2 was lost", is_consequence=True)


@pytest.mark.parametrize(
    ("ends", "nodes", "goes_on", "code", "words"),
    [
        ([WELL, WELL], 2, False, 0, ""),
        ([FAILED, WELL], 2, True, 0, "b: rank 1 failed; all ranks start again in 1 s"),
        ([OF_THAT, FAILED], 2, True, 0, "b: rank 1 failed;"),
        ([OF_THAT, LOST], 2, True, 0, "c: the launcher was lost;"),
        ([STOPPED, STOPPED], 2, False, 75, "a: stopped."),
        ([STOPPED, LEFT], 2, False, 75, "b: SIGTERM."),
        ([OF_THAT, LEFT], 2, False, 143, "b: SIGTERM."),
        ([STOPPED, LEFT], Span(1, 2), True, 0, "b has left; the other nodes go on."),
        (
            [STOPPED, NodeEnd("b", How.LEFT, 143, "SIGTERM", serves=True)],
            Span(1, 2),
            False,
            75,
            "b: S",
        ),
        ([STOPPED, NodeEnd("b", How.RESIZED, 75, "")], 2, True, 0, "the ranks start again"),
        ([STOPPED, NodeEnd("b", How.WISHED, 75, "asked")], Span(1, 2), False, 75, "b: asked."),
        (
            [FAILED, NodeEnd("b", How.OVER, 124, "`timeout` ended")],
            2,
            False,
            124,
            "b: `timeout` ended.",
        ),
    ],
)
def test_what_follows_an_attempt(ends, nodes, goes_on, code, words):
    decision = decide(ends, options(nodes), Restarts(1), stopped_for_nodes=False)
    assert (decision.goes_on, decision.code) == (goes_on, code)
    assert decision.message.startswith(words)


def test_nodes_that_are_let_in_cost_no_restart():
    restarts = Restarts(1)
    assert decide([STOPPED, STOPPED], options(Span(1, 3)), restarts, True).goes_on
    assert restarts.left == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": 2}, "`nodes` and `rendezvous` must come together"),
        ({"rendezvous": "a:1"}, "`nodes` and `rendezvous` must come together"),
        ({"nodes": 2, "rendezvous": "a"}, "`rendezvous` must be host:port"),
        ({"nodes": Span(1, 2), "rendezvous": "a:1"}, "`--nodes MIN:MAX` must come with restarts"),
        ({"nodes": 2, "rendezvous": "a:1", "engine": "mpi"}, "received --engine mpi"),
        ({"nodes": 2, "rendezvous": "a:1", "dry_run": True}, "received --dry-run; leave one of"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        RunOptions(processes=1, command=("x.py",), **given)
