"""One run in a process of its own.

    python -m benchmarks.convergence.worker

The worker reads a line of JSON from standard input, trains, and prints the outcome as the last
line. It ends when its standard input does, that is with the process that started it.
"""

import dataclasses
import json
import os
import pathlib
import sys
import threading

from benchmarks.convergence.runs import Outcome, Run, to_json
from tfdp.tools.bench.bench_devices import split_cpu


def request(run: Run, data: pathlib.Path | None) -> str:
    """Returns the request that a worker reads: a run, and the path of the transformer's texts."""
    return json.dumps({"run": dataclasses.asdict(run), "data": data and str(data)}) + "\n"


def main() -> None:
    """Reads, trains and prints."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    run = Run(**asked["run"])
    data = pathlib.Path(asked["data"]) if asked["data"] else None
    print(json.dumps(to_json(run, _train(run, data))), flush=True)


def _train(run: Run, data: pathlib.Path | None) -> Outcome:
    split_cpu(run.replicas)

    from benchmarks.convergence import splits
    from benchmarks.convergence.training import train

    return train(run, splits.load(run.task, run.examples, data))


def _end_with_standard_input() -> None:
    # The thread does not read sys.stdin: waiting in it, it would stop the interpreter's own end.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
