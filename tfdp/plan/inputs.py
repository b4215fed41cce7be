"""What is planned with: the work of a rank and the links, from the options, logs and files."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

from tfdp import machine
from tfdp.command_line import set_environment
from tfdp.plan.plan_options import PlanOptions
from tfdp.plan.quantities import Link
from tfdp.prediction import SLOTS, Cluster, Plan, Workload, described_links, even_tensors
from tfdp.prediction.workload import Tensor
from tfdp.report.log_directory import read_run
from tfdp.report.recorded import Recorded, recorded
from tfdp.topology import Links

_BETWEEN, _INSIDE = Link(10e9, 50e-6), Link(100e9, 5e-6)
_BATCH = 32
_BACKWARD = 2 / 3


class InputError(ValueError):
    """An error where a file that is planned with cannot be used."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is planned with.

    Attributes:
      name: What is trained, in words.
      origin: Where its times come from, in words.
      work: What a rank computes.
      links: The links; None: those of the options, by the number of ranks on a host.
      links_origin: Where the links come from, in words.
      measured_here: Whether this machine's cores computed.
    """

    name: str
    origin: str
    work: Workload
    links: Links | None
    links_origin: str
    measured_here: bool


def read(options: PlanOptions) -> Inputs:
    """Builds and times the model, or reads the logs; and reads the links.

    Raises:
      InputError: A file cannot be used, or the logs are of another model.
      LogError: The logs cannot be read.
      ModelError: The model cannot be built or timed.
    """
    links = read_links(options.links) if options.links else None
    origin = f"measured, in {options.links}" if options.links else "as described"
    name, where, work, run, here = _work(options)
    if options.deviation is not None:
        work = dataclasses.replace(work, deviation=options.deviation)
    if links is None and run is not None and run.cluster and not (options.link or options.inside):
        links, origin = run.cluster.links, "those that explain the logs' communication"
    return Inputs(name, where, work, links, origin, here)


def _work(options: PlanOptions) -> tuple[str, str, Workload, Recorded | None, bool]:
    tensors: tuple[Tensor, ...] | None = None
    work, name = None, options.model or ""
    timed = not (options.logs or options.examples_per_second)
    if options.model:
        work = _of_model(options, timed)
        tensors = work.tensors
    elif options.parameters:
        tensors, name = even_tensors(options.parameters), f"{options.parameters:,} weights"
    if options.logs:
        run = _of_logs(options, tensors if options.model else None)
        work = _batched(run.work, options)
        if options.model or options.optimizer:
            work = dataclasses.replace(work, slots=_slots(options, work.slots))
        return name or str(options.logs), f"measured, in {options.logs}", work, run, False
    assert tensors is not None  # the options see to it
    if timed and work is not None:
        return name, "timed on this machine", work, None, True
    rate = options.examples_per_second
    batch = options.batch or _BATCH
    seconds = batch / rate if rate else 0.0
    work = dataclasses.replace(
        work or Workload(tensors, 0.0, 0.0, slots=SLOTS["adam"]),
        forward_seconds=(1 - _BACKWARD) * seconds,
        backward_seconds=_BACKWARD * seconds,
        batch=batch,
    )
    work = dataclasses.replace(work, slots=_slots(options, work.slots))
    return name, f"{rate:g} examples/s of a rank alone" if rate else "no times", work, None, False


def _of_model(options: PlanOptions, timed: bool) -> Workload:
    if timed:
        # As many threads as `tfdp run` gives each of a host's ranks.
        threads = max(1, len(machine.cores()) // options.ranks_per_host)
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    set_environment()

    from tfdp.plan import measuring, models

    assert options.model is not None  # the caller's condition
    built = models.build(options.model)
    return measuring.workload(built, options.batch or _BATCH, options.optimizer, timed)


def _of_logs(options: PlanOptions, tensors: tuple[Tensor, ...] | None) -> Recorded:
    assert options.logs is not None  # the caller's condition
    run = read_run(options.logs)
    try:
        found = recorded(run, tensors)
    except ValueError as error:
        raise InputError(str(error)) from error
    if found is None:
        raise InputError(
            "`logs` must have sampled steps, without a synchronization; received "
            f"{str(options.logs)!r}, which has none; train some 50 steps with "
            "`tfdp.callbacks.Telemetry(log_dir, sample_every=5)` under a "
            "`tfdp.DataParallelStrategy`."
        )
    return found


def _batched(work: Workload, options: PlanOptions) -> Workload:
    """Returns the work at another batch: times of the passes are taken to grow with it."""
    if options.batch is None or options.batch == work.batch:
        return work
    factor = options.batch / work.batch
    return dataclasses.replace(
        work,
        batch=options.batch,
        forward_seconds=factor * work.forward_seconds,
        backward_seconds=factor * work.backward_seconds,
        activation_bytes=factor * work.activation_bytes,
    )


def _slots(options: PlanOptions, own: int) -> int:
    return SLOTS[options.optimizer] if options.optimizer else own


def read_links(path: pathlib.Path) -> Links:
    """Reads the links that `tfdp doctor --json`, or the decision of `topology="auto"`, has written.

    Raises:
      InputError: The file holds none.

    >>> read_links(pathlib.Path("no.json"))
    Traceback (most recent call last):
    tfdp.plan.inputs.InputError: `links` must be a file that `tfdp doctor --json FILE` wrote, ...
    """
    try:
        return Links(**json.loads(path.read_text())["links"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "`links` must be a file that `tfdp doctor --json FILE` wrote, or the strategy's "
            f"TFDP_TOPOLOGY_FILE; received {str(path)!r} ({type(error).__name__}: {error}); do "
            "`tfdp run -n 2 -- tfdp doctor --json links.json`."
        ) from error


def cluster(options: PlanOptions, inputs: Inputs, ranks: int) -> Cluster:
    """Returns the cluster of so many ranks.

    Ranks that were timed on this machine's cores share them, as `tfdp run` starts them: with more
    ranks on a host than cores, each takes longer.

    Raises:
      ValueError: The ranks do not fill hosts, or the links contradict each other.
    """
    slowdown = 1.0
    if inputs.measured_here:
        slowdown = max(1.0, min(ranks, options.ranks_per_host) / len(machine.cores()))
    links = inputs.links
    if links is None:
        between = options.link or _BETWEEN
        # Unless it is told, a host's inside is at least as near as its links.
        inside = options.inside or Link(
            max(_INSIDE.bits_per_second, between.bits_per_second),
            min(_INSIDE.latency_seconds, between.latency_seconds),
        )
        links = described_links(
            between.bits_per_second,
            between.latency_seconds,
            inside.bits_per_second,
            inside.latency_seconds,
            options.engine,
            slowdown,
        )
    return Cluster(ranks, options.ranks_per_host, links, slowdown)


def base_plan(options: PlanOptions) -> Plan:
    """Returns what all plans that are compared share."""
    return Plan(shard=options.shard, accumulation=options.accumulation)
