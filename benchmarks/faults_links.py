"""Runs of the benchmark of faults on two hosts whose link is cut.

The hosts are network namespaces of this machine, which root alone can make.
"""

import contextlib
import json
import pathlib
import random
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from benchmarks import faults_training, hosts
from benchmarks.faults_run import Fault, Run, one_run, started, until_ended
from tfdp.base import machine

# How the ranks of the two hosts are started: as by a scheduler, which starts both again when both
# have ended, or by launchers that meet. With 1:2 one host goes on alone.
_BY_A_SCHEDULER = "by a scheduler"
STARTS = (_BY_A_SCHEDULER, "--nodes 2", "--nodes 1:2")

_PHASES = ("trace", "step", "evaluate")
_JOIN_SECONDS = 30.0  # for a node to come again
_START_SECONDS = 400.0  # for all processes to end, whatever comes
_POLL_SECONDS = 0.01

# What decides the bits of sums beside the number of ranks, the same on one host and on two, and
# under `tfdp run`, which turns oneDNN on, and a scheduler, which does not.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "8",
    **machine.fast_kernels(),
}


def drawn(seed: int, runs: int) -> list[tuple[str, list[Fault]]]:
    """Returns how the ranks of each run are started, and its cut.

    >>> [(start, [fault])] = drawn(1, 1)
    >>> start, sorted(fault)
    ('by a scheduler', ['delay', 'kind', 'phase', 'rank', 'skip'])
    """
    draws = random.Random(seed)
    kinds = [list(faults_training.CUTS)[i % len(faults_training.CUTS)] for i in range(runs)]
    draws.shuffle(kinds)
    return [
        (
            STARTS[number % len(STARTS)],
            [
                {
                    "phase": draws.choice(_PHASES),
                    "kind": kind,
                    "rank": draws.randrange(2),
                    "skip": 0,
                    "delay": draws.choice([0.0, 0.01]),
                }
            ],
        )
        for number, kind in enumerate(kinds)
    ]


def why_not() -> str | None:
    """Returns why no hosts can be made here; None if they can."""
    try:
        with hosts.hosts(2, None):
            return None
    except hosts.HostsError as error:
        return str(error)


def undisturbed(start: str) -> Run:
    """Returns the run without faults that one started in such a way must agree with."""
    elastic = ":" in start
    return one_run(1 if elastic else 2, [], elastic, environ=_ENVIRONMENT)


def one_run_on_hosts(start: str, faults: Sequence[Fault]) -> Run:
    """Runs the training of two ranks on two hosts to its end, while their link is cut.

    Args:
      start: One of `STARTS`.
      faults: The cuts.

    Raises:
      subprocess.TimeoutExpired: A process did not end by itself.
      HostsError: No hosts can be made here.
    """
    with tempfile.TemporaryDirectory() as name, hosts.hosts(2, None) as both:
        folder = pathlib.Path(name)
        (folder / "faults.json").write_text(json.dumps(list(faults)))
        elastic = ":" in start
        if elastic:
            (folder / faults_training.SLOTS).write_text("2")

        def run_once() -> int:
            with contextlib.ExitStack() as stack:
                environ = {"TFDP_SECRET": secrets.token_hex(16), **_ENVIRONMENT}
                processes = [
                    stack.enter_context(started(folder, words, **environ, **own))
                    for words, own in _commands(start, folder, both)
                ]
                stack.enter_context(_cutting(folder, both[1]))
                codes = [process.wait(_START_SECONDS) for process in processes]
            # A node that is done without has given up.
            return codes[0] if elastic else max(codes, key=abs)

        return until_ended(folder, run_once, 1 if elastic else 2, faults)


def _commands(
    start: str, folder: pathlib.Path, both: Sequence[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Returns the command of each host, and what is set in its environment."""
    program = [faults_training.__file__, str(folder)]
    addresses = [hosts.address(index) for index in range(2)]
    if start == _BY_A_SCHEDULER:
        ports = random.sample(range(20000, 32768), 2)
        workers = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
        return [
            (
                hosts.inside(host, [sys.executable, *program]),
                {
                    "TFDP_PEERS": " ".join(addresses),
                    "TF_CONFIG": json.dumps(
                        {
                            "cluster": {"worker": workers},
                            "task": {"type": "worker", "index": index},
                        }
                    ),
                },
            )
            for index, host in enumerate(both)
        ]
    words = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "1", "--max-restarts", "20"]
    words += [*start.split(), "--rendezvous", f"{addresses[0]}:29400"]
    words += ["--join-timeout", str(_JOIN_SECONDS), *program]
    return [(hosts.inside(host, words), {}) for host in both]


@contextlib.contextmanager
def _cutting(folder: pathlib.Path, host: str) -> Iterator[None]:
    """Cuts a host off when the training says so, until the cut is over or the context ends."""
    over = threading.Event()

    def watch() -> None:
        asked = folder / faults_training.CUT
        while not over.wait(_POLL_SECONDS):
            if asked.exists():
                seconds = faults_training.CUTS[asked.read_text()]
                asked.unlink()
                hosts.set_link(host, up=False)
                try:
                    over.wait(seconds)
                finally:
                    hosts.set_link(host, up=True)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
