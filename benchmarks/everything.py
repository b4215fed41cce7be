"""The benchmark of all: every table and picture of README and docs, one after the other."""

import argparse
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping

from tfdp.base.atomic_files import replace_text
from tfdp.base.command_line import REQUIRED, add_command, check, option

_HOSTS = "python -m benchmarks sums --hosts 2 --processes 4 --rate 200mbit --sizes 25MB "
_HOSTS += "--rounds 1 --order"
_HOSTS_SIDES = "--topology native,halving_doubling,hierarchical,ring,torus,auto,stock,gloo,mpi4py"
_SWEEP = "python -m benchmarks {command} --jobs 2 --task {task} --results {{folder}}/{name}.jsonl "
_SWEEP += "--output {{folder}}/{name}.png --table {{folder}}/{name}.md"
_SWEEPS = [("convergence", task, "") for task in ("mlp", "cnn", "transformer")]
_SWEEPS += [
    ("accuracy-by-bytes", "cnn", " --epochs 4 --replicas 4"),
    ("accuracy-by-bytes", "transformer-one-hot", " --batch 32 --epochs 2 --replicas 4"),
]

# The commands by the name of what they print, the quick ones first; {folder} receives all of it.
COMMANDS: Mapping[str, str] = {
    "demo": "python -m tutorials.demo --output {folder}/demo.png",
    "doctor": "tfdp run -n 2 -- tfdp doctor",
    "equivalence": "python -m benchmarks equivalence",
    "partitioners": "python -m benchmarks partitioners --results {folder}/partitioners.jsonl",
    "gathers": "python -m benchmarks gathers",
    "compression": "python -m benchmarks compression",
    "compression-cost": "python -m benchmarks compression-cost",
    "synchronization": "python -m benchmarks synchronization",
    "slow-ranks": "python -m benchmarks slow-ranks",
    "versions": "python -m benchmarks versions --environments {folder}/environments",
    "costs": "python -m benchmarks costs",
    "keras-on-jax": "python -m benchmarks keras-on-jax",
    "layouts": "python -m benchmarks layouts",
    "compile-ahead": "python -m benchmarks compile-ahead",
    "compile-ahead-sharded": "python -m benchmarks compile-ahead --models mlp "
    "--topologies v5e:2x4 --shard optimizer",
    "compile-ahead-bfloat16": "python -m benchmarks compile-ahead --models transformer "
    "--topologies v5e:2x4 --dtype-policy mixed_bfloat16",
    "optimizers": "python -m benchmarks optimizers --rounds 20",
    "normalization": "python -m benchmarks normalization",
    "normalization-mpi": "tfdp run -n 2 --engine mpi -- python -m benchmarks normalization",
    "normalization-tensorflow": "tfdp run -n 2 --engine tensorflow -- python -m benchmarks "
    "normalization",
    "telemetry": "python -m benchmarks telemetry --rounds 12",
    "checkpoint": "python -m benchmarks checkpoint",
    "activations": "python -m benchmarks activations",
    "memory": "python -m benchmarks memory",
    "memory-four": "python -m benchmarks memory --processes 4",
    "elastic": "python -m benchmarks elastic --output {folder}/elastic.png",
    "logs-of-one": "python docs/telemetry/train.py {folder}/logs/one",
    "logs-of-two": "tfdp run -n 2 -- python docs/telemetry/train.py {folder}/logs/two",
    "report": "tfdp report {folder}/logs/two --compare {folder}/logs/one",
    "loopback": "python -m benchmarks sums --processes 2 --sizes 4KB,1MB,100MB "
    "--output {folder}/loopback.png",
    "small-sums": "python -m benchmarks sums --engine mpi --topology native,graph,mpi4py "
    "--sizes 4KB,1MB --repeats 50 --output {folder}/small-sums.png",
    "four-hosts": "python -m benchmarks sums --hosts 4 --processes 4 --rate 200mbit --sizes 25MB "
    "--rounds 1 --topology native,direct,torus,halving_doubling,ring,tree,stock,gloo,mpi4py "
    "--output {folder}/four-hosts.png",
    "order-0011": f"{_HOSTS} 0,0,1,1 {_HOSTS_SIDES} --output {{folder}}/order-0011.png",
    "order-0101": f"{_HOSTS} 0,1,0,1 {_HOSTS_SIDES} --output {{folder}}/order-0101.png",
    "order-0110": f"{_HOSTS} 0,1,1,0 {_HOSTS_SIDES} --output {{folder}}/order-0110.png",
    "slow-links-four": "python -m benchmarks slow-links --order 0,1,2,3",
    "slow-links-two": "python -m benchmarks slow-links --order 0,0,1,1",
    "plan": "python -m benchmarks plan --results {folder}/cells.jsonl",
    "plan-published": "python -m benchmarks plan --published",
    "data-arrays": "python -m benchmarks data --sources arrays --rounds 7",
    "data-records": "python -m benchmarks data --sources records --rounds 7",
    "data-images": "python -m benchmarks data --sources images --image-files 10000 --rounds 7",
    "faults": "python -m benchmarks faults",
    "fit": "python -m benchmarks fit --rounds 3 --steps 10",
    "fit-processes": "python -m benchmarks fit --processes 2 --one-device",
    **{
        f"{command}-{task}": _SWEEP.format(command=command, task=task, name=f"{command}-{task}")
        + chosen
        for command, task, chosen in _SWEEPS
    },
}


@dataclasses.dataclass(frozen=True)
class AllOptions:
    """The tables to make, and the folder for them."""

    output: pathlib.Path = option(
        REQUIRED, "where the tables go, and the pictures; is made if need be", metavar="FOLDER"
    )
    only: tuple[str, ...] = option(
        tuple(COMMANDS),
        f"with commas between: {', '.join(COMMANDS)} (all)",
        choices=tuple(COMMANDS),
        metavar="NAMES",
    )

    def __post_init__(self) -> None:
        check(self)


def add_all(commands: argparse._SubParsersAction) -> None:
    """Adds `all` to the benchmarks."""
    add_command(
        commands,
        "all",
        AllOptions,
        lambda options, parser: run(options),
        help="all that README and docs show, one after the other",
        description="Runs every command of benchmarks/README.md and writes what it prints to "
        "FOLDER/NAME.txt. What is there already is not run again: the same command goes on where "
        "it was stopped, and tries again what failed. The last five train for hours.",
        epilog="Exit code 0 if all is there; 1 if something failed, which is listed at the end.",
    )


def run(options: AllOptions) -> int:
    """Runs the commands whose output is not there yet, and goes on after a failure.

    Returns:
      The exit code: 0, or 1 where a command failed.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in options.only:
        path, log = options.output / f"{name}.txt", options.output / f"{name}.failed.txt"
        if path.exists():
            print(f"{name}: is in {path}", flush=True)
            continue
        command = COMMANDS[name].format(folder=options.output)
        print(f"{name}: {command}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            _words(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # This is wide enough for every table.
            env={**os.environ, "COLUMNS": "110"},
            check=False,
        )
        print(done.stdout, f"({time.monotonic() - began:.0f} s)", sep="", flush=True)
        log.unlink(missing_ok=True)
        replace_text(path if done.returncode == 0 else log, f"$ {command}\n{done.stdout}")
        if done.returncode != 0:
            failed[name] = log
    for name, log in failed.items():
        print(f"{name} failed: see {log}", file=sys.stderr)
    return 1 if failed else 0


def _words(command: str) -> list[str]:
    """Returns the command's words, for this Python and its `tfdp`, also after `--`."""
    python = {"python": [sys.executable], "tfdp": [sys.executable, "-m", "tfdp"]}
    return [part for word in shlex.split(command) for part in python.get(word, [word])]
