"""One run in a process of its own.

    python -m benchmarks.convergence.worker

The worker reads a line of JSON from standard input, trains, and prints the outcome as the last
line. It ends when its standard input does, that is with the process that started it. Where the
replicas are processes, it starts them by `tfdp run`, each with that line as its argument.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading

from benchmarks.convergence.runs import Outcome, Run, to_json
from tfdp.cluster import rank_in_environment
from tfdp.tools.bench.bench_devices import split_cpu
from tfdp.tools.bench.child_process import unset_launcher_settings

_MODULE = "benchmarks.convergence.worker"
_RANK_0 = "[0] "  # before its lines


def request(run: Run, data: pathlib.Path | None) -> str:
    """Returns the request that a worker reads: a run, and the path of the transformer's texts."""
    return json.dumps({"run": dataclasses.asdict(run), "data": data and str(data)}) + "\n"


def main() -> None:
    """Reads, trains and prints."""
    if len(sys.argv) > 1:
        _print_trained(sys.argv[1])
        return
    asked = sys.stdin.readline()
    started: list[subprocess.Popen[str]] = []
    threading.Thread(target=_end_with_standard_input, args=[started], daemon=True).start()
    if (engine := Run(**json.loads(asked)["run"]).engine) is None:
        _print_trained(asked)
    else:
        sys.exit(_print_trained_by_ranks(asked, engine, started))


def _print_trained(asked: str) -> None:
    run, data = Run(**json.loads(asked)["run"]), json.loads(asked)["data"]
    outcome = _train(run, pathlib.Path(data) if data else None)
    if not rank_in_environment():
        print(json.dumps(to_json(run, outcome)), flush=True)


def _print_trained_by_ranks(asked: str, engine: str, started: list) -> int:
    """Prints what rank 0 prints, and returns the exit code of all."""
    replicas = str(json.loads(asked)["run"]["replicas"])
    command = [*unset_launcher_settings(), sys.executable, "-m", "tfdp.tools.cli", "run"]
    command += ["-n", replicas, "--engine", engine, "--", sys.executable, "-m", _MODULE, asked]
    ranks = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    started.append(ranks)
    printed, _ = ranks.communicate()
    for line in printed.splitlines():
        if line.startswith(_RANK_0):
            print(line.removeprefix(_RANK_0), flush=True)
    return ranks.returncode


def _train(run: Run, data: pathlib.Path | None) -> Outcome:
    split_cpu(1 if run.engine else run.replicas)

    from benchmarks.convergence import splits
    from benchmarks.convergence.training import train

    return train(run, splits.load(run.task, run.examples, data))


def _end_with_standard_input(started: list) -> None:
    # The thread does not read sys.stdin: waiting in it, it would stop the interpreter's own end.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    for launcher in started:
        launcher.kill()  # which ends its ranks
    os._exit(1)


if __name__ == "__main__":
    main()
