"""The examination of this installation and this cluster, from the options to the exit code."""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tfdp
from tfdp import cluster
from tfdp.base import machine
from tfdp.base.atomic_files import replace_text
from tfdp.cluster import Cluster
from tfdp.errors import ClusterError
from tfdp.tools.doctor import DoctorOptions
from tfdp.tools.doctor.cluster_hints import described, hints
from tfdp.tools.doctor.doctor_lines import cluster_lines, mpi_line, rank_lines, versions_line
from tfdp.tools.doctor.rank_facts import Measurement, RankFacts, chosen, own_facts

_INSTALL = (
    "TensorFlow must be installed, but cannot be imported. Do `pip install 'tfdp[cpu]'` (or "
    "'tfdp[gpu]', or 'tfdp[tensorflow]')."
)


def run(options: DoctorOptions) -> int:
    """Examines this process and its cluster. Rank 0 prints; the others print only their failures.

    Returns:
      The exit code: 0, also where there are hints; 1 where a check failed.
    """
    environment = chosen(os.environ)
    try:
        found = cluster.detect()
    except ClusterError as error:
        _print([versions_line(machine.versions())])
        return _failed(str(error))
    if found.rank == 0:
        _print([versions_line(machine.versions()), mpi_line(os.environ)])
    # TensorFlow reads these when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        import keras
        import tensorflow as tf
    except ImportError as error:
        return _failed(f"{_INSTALL} ({error})")
    del keras
    try:
        return _examine(found, options, environment)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        return _failed(str(error))


def _examine(found: Cluster, options: DoctorOptions, environment: dict[str, str]) -> int:
    import tensorflow as tf

    from tfdp.tools.doctor.measure import measure

    if found.rank == 0:
        _print(cluster_lines(found))
    strategy = tfdp.DataParallelStrategy(
        timeout_seconds=options.timeout_seconds, startup_timeout_seconds=options.timeout_seconds
    )
    own = own_facts(found.rank, strategy, environment)
    ranks = [RankFacts.from_json(value) for value in _of_all(strategy, "facts", own.to_json())]
    measured: list[Measurement | None] = [None] * len(ranks)
    failure = None
    if options.json is not None and strategy.num_replicas_in_sync == 1:
        return _failed(
            "`--json` must be given where there are links to measure, but there is one replica. Do "
            f"`tfdp run -n 2 -- tfdp doctor --json {options.json}`."
        )
    try:
        if options.json is not None:
            _write_links(strategy, found.rank, options.json)
        result = measure(strategy, options.large_elements, options.timeout_seconds)
        sent = _of_all(strategy, "measurements", dataclasses.asdict(result))
        measured = [Measurement(**value) for value in sent]
    except (RuntimeError, tf.errors.OpError) as error:
        failure = _cause(strategy, error)
    if found.rank == 0:
        _print(rank_lines(ranks, measured, options.megabytes))
        advice = hints(ranks)
        _print(described(hint, found.world_size) for hint in advice)
    if failure is not None:
        return _failed(failure)
    wrong = [rank for rank, result in enumerate(measured) if result and result.right is False]
    if wrong:
        if found.rank in (0, *wrong):
            _failed(_wrong_sums(wrong, ranks))
        return 1
    if found.rank == 0:
        _print(["All checks passed" + (f"; {len(advice)} to improve." if advice else ".")])
    return 0


def _write_links(strategy: Any, rank: int, path: pathlib.Path) -> None:
    """Measures latency and rate of the links, as `topology="auto"` does; rank 0 writes them."""
    extended = strategy.extended
    links = dataclasses.asdict(extended.probe().links())
    if rank == 0:
        replace_text(path, json.dumps({"hosts": extended.hosts(), "links": links}, indent=1) + "\n")
        _print([f"links:    written to {path}"])


def _of_all(strategy: Any, subject: str, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what each rank has said, in the order of ranks."""
    from tfdp.communication.replicas import processes_of

    posts = processes_of(strategy).all_gather(f"the doctor's {subject}", own)
    return [post.value for post in posts]


def _cause(strategy: Any, error: Exception) -> str:
    """Returns the failure that the board knows, which says more than TensorFlow's error."""
    from tfdp.communication.replicas import processes_of

    failure = processes_of(strategy).failure(within_seconds=3.0)
    if failure is not None:
        return str(failure)
    return f"The all-reduce must end without an error, but: {error}"


def _wrong_sums(wrong: Sequence[int], ranks: Sequence[RankFacts]) -> str:
    fix = "Report it to tfdp with all that is printed here."
    if any(facts.uses_gpu for facts in ranks):
        fix = (
            "Try again with `NCCL_P2P_DISABLE=1`: if that mends it, the direct connection of the "
            "GPUs is at fault. Else report it to tfdp with all that is printed here."
        )
    listed = ", ".join(map(str, wrong))
    return f"An all-reduce must give every rank the sum, but rank {listed} got another. {fix}"


def _print(lines: Any) -> None:
    for line in lines:
        print(line, flush=True)


def _failed(text: str) -> int:
    for option in ("startup_timeout_seconds", "timeout_seconds"):  # here both are one option
        text = text.replace(f"`{option}`", "`--timeout`")
    print(f"tfdp doctor: error: {text}", file=sys.stderr, flush=True)
    return 1
