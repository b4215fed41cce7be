"""A run's logs as the prediction takes them: what a replica computes, and links as they were."""

import ast
import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any

from tfdp import topology
from tfdp.tools.prediction import (
    ClusterModel,
    Plan,
    Workload,
    described_links,
    even_tensors,
    predict,
)
from tfdp.tools.prediction.workload import SLOTS, GradientTensor, passes
from tfdp.tools.report.breakdown import RankSplit, rank_splits, split_of
from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.rank_log import steady
from tfdp.tools.report.summary import headline
from tfdp.topology import Links, Topology, names

_SLOWEST, _FASTEST = 1e4, 1e13  # bytes per second
_HALVINGS = 60
# How well a sample tells the communication, as a share of its step.
_SHARE_OF_STEP = 0.01

_COMPRESSIONS = {
    "Cast(": "bfloat16",
    "Int8(": "int8",
    "Sign(": "sign",
    "TopK(": "topk",
    "PowerSGD(": "powersgd",
}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run as a workload on a cluster.

    Args:
      work: What a replica computed.
      cluster: The ranks, with links that explain the measured communication; None for one replica.
      plan: What the run was given, as far as the logs tell.
      links_origin: Where the links come from, in words.
    """

    work: Workload
    cluster: ClusterModel | None
    plan: Plan
    links_origin: str = ""


def recorded(run: LoggedRun, tensors: tuple[GradientTensor, ...] | None = None) -> Recorded | None:
    """Returns a run as the prediction takes it; None where its steps were not sampled.

    The median of the ranks' steps counts. Ranks are replicas; hosts are those of the logs. The
    gradients' sizes are not in the logs: without `tensors` they are taken as 50 equal ones.

    Args:
      run: The logs.
      tensors: The gradients of the model, where it is known.

    Raises:
      ValueError: The gradients are of another model than the logs.
    """
    start, splits = run.start, rank_splits(run)
    sampled = [one for one in splits if "compute" in one.split.parts]
    if not sampled or not start.parameters:
        return None
    if tensors is not None and sum(t.elements for t in tensors) != start.parameters:
        raise ValueError(
            f"The logs must be of the model that is planned for, which trains "
            f"{sum(t.elements for t in tensors):,} weights, but in {str(run.directory)!r} are the "
            f"logs of one that trained {start.parameters:,}. Give the logs of this model, or "
            "`--logs` alone."
        )
    line = headline(run)
    compute = statistics.median(one.split.parts["compute"] for one in sampled)
    batch = max(1, round((line.examples_per_step or start.replicas) / start.replicas))
    work = Workload(
        tensors or even_tensors(start.parameters),
        *passes(compute),
        other_seconds=_median(sampled, "input") + _median(sampled, "other"),
        first_seconds=_first(run),
        batch=batch,
        slots=SLOTS.get((start.optimizer or "").lower(), 1),
        deviation=_deviation(run),
    )
    plan = _plan(run)
    if plan is None:
        return None
    if start.replicas == 1:
        return Recorded(work, None, plan)
    strategy = _strategy(run)
    hosts = len(set(strategy.get("hosts") or ())) or max(1, len(line.hosts))
    per_host = start.replicas // hosts if start.replicas % hosts == 0 else 1
    measured = _measured_links(strategy)
    if measured is not None:
        cluster = ClusterModel(start.replicas, per_host, measured)
        return Recorded(work, cluster, plan, 'measured, when topology="auto" decided')
    # The wait for a late rank is in the others' communication: the least is the links'.
    seconds = min(one.split.parts.get("communication", 0.0) for one in sampled)
    cluster = ClusterModel(start.replicas, per_host, described_links(1e10, 5e-5, 1e11, 5e-6))
    found, least = calibrated(plan, work, cluster, seconds)
    origin = (
        "the slowest that explain the logs' communication, little of which was exposed"
        if least
        else "those that explain the logs' communication"
    )
    return Recorded(work, found, plan, origin)


def calibrated(
    plan: Plan, work: Workload, cluster: ClusterModel, communication_seconds: float
) -> tuple[ClusterModel, bool]:
    """Returns the cluster with links by which `plan` takes the communication that was measured.

    The rate between hosts is sought, or inside where there is one host: the less, the longer the
    communication. Where the backward pass hides it, or the engine's costs alone take as long, any
    fast link explains it: the slowest of them is returned.

    Args:
      plan: What the run was given.
      work: What a replica computed.
      cluster: The ranks; its links' latencies and costs are taken as they are.
      communication_seconds: The exposed communication of a step.

    Returns:
      The cluster, and whether its rate is the least that the links may have, and not theirs.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> from tfdp.topology import Links
    >>> work = Workload((GradientTensor((6_250_000,)),), 0.0, 0.0)
    >>> cluster = ClusterModel(4, 1, Links(0, 1e9, 0, 1e9))
    >>> found, least = calibrated(Plan("ring"), work, cluster, 1.5)
    >>> round(found.links.bytes_per_second_between / 1e6), least
    (25, False)
    """
    between = cluster.hosts > 1
    name = "bytes_per_second_between" if between else "bytes_per_second_inside"

    def with_rate(rate: float) -> ClusterModel:
        # Ranks of a host are at least as near.
        rates = {name: rate}
        if between:
            inside = cluster.links.bytes_per_second_inside
            rates["bytes_per_second_inside"] = max(rate, inside)
        return dataclasses.replace(cluster, links=dataclasses.replace(cluster.links, **rates))

    def takes(rate: float) -> float:
        return predict(plan, work, with_rate(rate)).communication_seconds

    step = work.compute_seconds + work.update_seconds + work.other_seconds + communication_seconds
    told = takes(_FASTEST) + _SHARE_OF_STEP * step
    sought = max(communication_seconds, told)
    low, high = _SLOWEST, _FASTEST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if takes(middle) > sought else (low, middle)
    return with_rate(high), communication_seconds < told


def _measured_links(strategy: Mapping[str, Any]) -> Links | None:
    """Returns the links that `topology="auto"` decided by; None: none, or none that can be read."""
    told = strategy.get("topology")
    links = told.get("links") if isinstance(told, dict) else None
    try:
        return Links(**links) if isinstance(links, dict) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _strategy(run: LoggedRun) -> Mapping[str, Any]:
    """Returns what the manifest tells of the strategy."""
    found = (run.manifest or {}).get("strategy")
    return found if isinstance(found, dict) else {}


def _plan(run: LoggedRun) -> Plan | None:
    """Returns what the run was given; None where it was given what no plan knows."""
    options = _strategy(run).get("options")
    given = options if isinstance(options, dict) else {}
    compression = _known(given.get("compression"), _COMPRESSIONS)
    if compression is None or given.get("synchronization") not in (None, "None"):
        return None
    summed_by = _topology(run.start.topology)
    if summed_by is None:
        return None
    size = _strategy(run).get("bucket_bytes") or given.get("bucket_bytes")
    return Plan(
        summed_by,
        size if isinstance(size, int) else Plan().bucket_bytes,
        compression,
        accumulation=max(1, run.start.gradient_accumulation_steps or 1),
    )


def _known(told: Any, names_of: Mapping[str, str]) -> str | None:
    """Returns the name of a compression that the manifest tells by its repr."""
    if told in (None, "None"):
        return "none"
    return next((name for word, name in names_of.items() if word in str(told)), None)


def _median(splits: list[RankSplit], part: str) -> float:
    return statistics.median(one.split.parts.get(part, 0.0) for one in splits)


def _first(run: LoggedRun) -> float | None:
    """Returns how much longer the first step took than the others."""
    log = run.first
    if not log.sessions[0].steps:
        return None
    first = log.sessions[0].steps[0]
    usual = statistics.median(step.seconds / step.steps for step in steady(log))
    return max(0.0, first.seconds - first.steps * usual)


def _deviation(run: LoggedRun) -> float:
    """Returns the deviation of the logarithm of compute times, over ranks and samples."""
    logs = [
        math.log(split.parts["compute"])
        for log in run.ranks
        for step in steady(log)
        if (split := split_of(step)) is not None and split.parts["compute"] > 0
    ]
    return statistics.pstdev(logs) if len(logs) > 1 else 0.0


def _topology(told: str | None) -> str | Topology | None:
    """Returns the topology that a start line names, by name or repr; None: a user's own."""
    if told is None or told in names():
        return told or "native"
    if told.startswith("Auto("):
        return "auto"
    try:
        built = _built(ast.parse(told, mode="eval").body)
    except (SyntaxError, TypeError, ValueError, AttributeError):
        return None
    return next((name for name in names() if topology.from_name(name) == built), built)


def _built(node: ast.AST) -> Any:
    """Returns what a repr such as `Hierarchical(inner=Direct(), outer=Tree())` is of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kind = getattr(topology, node.func.id)
        if issubclass(kind, Topology):
            given = {str(each.arg): _built(each.value) for each in node.keywords}
            return kind(*map(_built, node.args), **given)
    return ast.literal_eval(node)
