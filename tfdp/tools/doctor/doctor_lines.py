"""The lines that the doctor prints: versions, the installed MPI, the cluster and each rank.

They are plain, so that a launcher's prefix does not break them.
"""

import sys
from collections.abc import Mapping, Sequence

from tfdp.cluster import Cluster
from tfdp.cluster.launch.mpiexec import check_fit, find_library, find_mpiexec, thread_level
from tfdp.cluster.mpi import without_rank
from tfdp.errors import ClusterError
from tfdp.tools.doctor.rank_facts import Measurement, RankFacts

_NOTHING = "-"


def versions_line(versions: Mapping[str, str | None]) -> str:
    """Returns all versions in one line.

    >>> versions_line({"python": "3.11.7", "tensorflow": None})
    'versions: python 3.11.7, tensorflow (not installed)'
    """
    return "versions: " + ", ".join(
        f"{name} {version or '(not installed)'}" for name, version in versions.items()
    )


def mpi_line(environ: Mapping[str, str]) -> str:
    """Returns what is installed, or why ranks cannot use it and the fix.

    Cost: three short processes, some 0.5 s.

    Args:
      environ: The environment of this process, which may be a rank of MPI.
    """
    environ = without_rank(environ)
    try:
        launcher = find_mpiexec(environ)
        library = find_library(sys.executable, environ)
        check_fit(launcher, library)
    except ClusterError as error:
        return f"MPI:      not for `tfdp run --engine mpi`: {error}"
    return (
        f"MPI:      {launcher.path} of {launcher.vendor}, mpi4py {library.mpi4py} on "
        f"{library.vendor} {library.version}, "
        f"{thread_level(sys.executable, environ) or 'which cannot be initialised'}"
    )


def cluster_lines(cluster: Cluster) -> list[str]:
    """Returns the cluster as this process understands it, in lines.

    >>> print(*cluster_lines(Cluster(0, 2, "a:20000", ("a:20000", "b:20000"), "TF_CONFIG")),
    ...       sep=chr(10))
    cluster:  2 processes, this is rank 0; read from TF_CONFIG
              rank 0 at a:20000, rank 1 at b:20000
    """
    if cluster.world_size == 1:
        return [f"cluster:  one process ({cluster.source})"]
    if cluster.addresses is None:
        where = f"rank 0 at {cluster.coordinator}, the others at ports that they choose"
    else:
        where = ", ".join(f"rank {i} at {address}" for i, address in enumerate(cluster.addresses))
    return [
        f"cluster:  {cluster.world_size} processes, this is rank {cluster.rank}; "
        f"read from {cluster.source}",
        f"          {where}",
    ]


def rank_lines(
    ranks: Sequence[RankFacts], measured: Sequence[Measurement | None], megabytes: int
) -> list[str]:
    """Returns `tfdp doctor`'s table: a head, a line for each rank, what the numbers mean.

    Args:
      ranks: Every rank of the cluster.
      measured: The measurements of each rank; None where the checks did not end.
      megabytes: The size of the large all-reduce.
    """
    replicas = sum(len(facts.devices) for facts in ranks)
    own = [f"rank {facts.rank} has {','.join(facts.own_gpus)}" for facts in ranks if facts.own_gpus]
    head = ["rank", "host", "pid", "devices", "cores", "trip ms", "4 B ms"]
    head += [f"{megabytes} MB ms", "GB/s", "result"]
    rows = [head]
    for facts, result in zip(ranks, measured, strict=True):
        row = [str(facts.rank), facts.host, str(facts.pid)]
        row += [_joined(facts.devices), str(len(facts.cores))]
        rows.append(row + _result_cells(result, replicas, megabytes))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if own:
        lines.append(f"(GPUs as CUDA_VISIBLE_DEVICES names them: {'; '.join(own)})")
    kinds = sorted({kind for facts in ranks for kind in facts.gpu_kinds})
    if kinds:
        nccl = sorted({facts.nccl or "unknown" for facts in ranks})
        lines.append(f"(kinds of GPUs: {', '.join(kinds)}; NCCL {', '.join(nccl)})")
    if replicas > 1:
        lines += [
            f"(medians in ms: a message to all ranks, by rank 0; all-reduces over {replicas}",
            "replicas of that size; GB/s: what a replica sends, 2(n-1)/n of it, by time)",
        ]
    else:
        lines.append("(one replica: there is nothing to reduce)")
    return lines


def _result_cells(result: Measurement | None, replicas: int, megabytes: int) -> list[str]:
    if result is None:
        return [_NOTHING] * 4 + ["failed"]
    rate = _NOTHING
    if result.large_seconds is not None:
        sent = 2 * (replicas - 1) / replicas * megabytes * 1e6
        rate = f"{sent / result.large_seconds / 1e9:.2f}"
    right = {None: _NOTHING, True: "right", False: "WRONG"}[result.right]
    times = (result.round_trip_seconds, result.small_seconds, result.large_seconds)
    return [*map(_milliseconds, times), rate, right]


def _milliseconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else f"{1e3 * seconds:.2f}"


def _joined(devices: Sequence[str]) -> str:
    """Returns devices without the kind repeated.

    >>> _joined(["CPU:0", "CPU:1", "CPU:2"])
    'CPU:0,1,2'
    """
    kind = devices[0].split(":")[0]
    return f"{kind}:" + ",".join(device.split(":")[-1] for device in devices)
