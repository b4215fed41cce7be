"""The inputs of a plan: the work of a rank and the links, from options, logs and files."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections import Counter
from typing import TYPE_CHECKING

from tfdp.base import machine
from tfdp.base.command_line import set_environment
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.plan.quantities import Link
from tfdp.tools.prediction import SLOTS, ClusterModel, Workload, described_links, even_tensors
from tfdp.tools.prediction.workload import GradientTensor, passes
from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.prediction_inputs import Recorded, recorded
from tfdp.topology import Links

if TYPE_CHECKING:
    import keras

_BETWEEN, _INSIDE = Link(10e9, 50e-6), Link(100e9, 5e-6)
_ASSUMED = "assumed: 10 Gbit/s and 50 us between hosts; `--link` says otherwise"
_BATCH = 32

# What logs tell of a model's step.
_OF_LOGS = (
    "forward_seconds",
    "backward_seconds",
    "update_seconds",
    "other_seconds",
    "first_seconds",
    "deviation",
)


class InputError(ValueError):
    """An error where a file that is planned with cannot be used."""


@dataclasses.dataclass(frozen=True)
class PlanInputs:
    """What is planned with.

    Attributes:
      name: What is trained, in words.
      origin: Where its times come from, in words.
      work: What a rank computes.
      measured: Measured links, and the hosts and ranks between which they were measured; those
        that were not, the options describe. None: they describe all.
      links_origin: Where the links come from, in words.
      ranks_per_host: The ranks of each host.
      accumulation: The steps that the optimizer accumulates.
      measured_here: Whether this machine's cores computed.
      is_compiled: Whether XLA compiles the step, for a chip.
    """

    name: str
    origin: str
    work: Workload
    measured: ClusterModel | None
    links_origin: str
    ranks_per_host: int
    accumulation: int
    measured_here: bool
    is_compiled: bool = False


def read(options: PlanOptions) -> PlanInputs:
    """Builds and times the model, or reads the logs; and reads the links.

    Raises:
      InputError: A file cannot be used, or the logs are of another model.
      LogError: The logs cannot be read.
      ModelError: The model cannot be built or timed.
    """
    described = bool(options.link or options.inside)
    origin = "as described" if options.link else _ASSUMED
    found = read_links(options.links) if options.links else None
    if found is not None:
        origin = f"measured, in {options.links}"
        if options.link and found.hosts > 1:
            raise InputError(
                "`link` must describe links that were not measured, but received it beside "
                f"{str(options.links)!r}, which has those between {found.hosts} hosts; leave "
                "`--link` out, or the measured file."
            )
        if options.link:
            origin += "; between hosts as described"
    run, name, where, timed = None, options.model or "", "", False
    per_host = options.ranks_per_host or (found.ranks_per_host if found else None)
    if options.logs:
        run, work = _of_logs(options)
        name, where = name or str(options.logs), f"measured, in {options.logs}"
        per_host = per_host or (run.cluster.ranks_per_host if run.cluster else None)
        if run.cluster and found is None and not described:
            found, origin = run.cluster, run.links_origin
    elif options.model and options.chip:
        from tfdp.tools.plan import compiled_costs

        name, batch = options.model, options.batch or _BATCH
        work, where = compiled_costs.workload(name, batch, options.optimizer, options.chip)
    elif options.model and not options.examples_per_second:
        batch = options.batch or _BATCH
        print(
            f"Timing a step of {options.model} with {batch} examples on this machine ...",
            file=sys.stderr,
            flush=True,
        )
        work = _of_model(options, _built(options, per_host or 1), batch, True)
        where, timed = "timed on this machine", True
    else:
        name, where, work = _of_rate(options)
    if options.deviation is not None:
        work = dataclasses.replace(work, deviation=options.deviation)
    return PlanInputs(
        name,
        where,
        work,
        found,
        origin,
        per_host or 1,
        options.accumulation or (run.plan.accumulation if run else 1),
        timed,
        options.chip is not None,
    )


def _of_rate(options: PlanOptions) -> tuple[str, str, Workload]:
    """Returns the work of a rank whose examples per second are told, or which has no times."""
    batch, rate = options.batch or _BATCH, options.examples_per_second
    seconds = batch / rate if rate else 0.0
    if options.model:
        name, work = options.model, _of_model(options, _built(options, 1), batch, False)
    else:
        assert options.parameters is not None  # the options see to it
        name = "A model"
        slots = SLOTS[options.optimizer or "adam"]
        work = Workload(even_tensors(options.parameters), 0.0, 0.0, batch=batch, slots=slots)
    origin = f"{rate:g} examples/s of a rank alone" if rate else "no times"
    forward, backward = passes(seconds)
    work = dataclasses.replace(work, forward_seconds=forward, backward_seconds=backward)
    return name, origin, work


def _built(options: PlanOptions, ranks_per_host: int) -> keras.Model:
    # As many threads as `tfdp run` gives each of a host's ranks, and its kernels.
    threads = str(max(1, len(machine.cores()) // ranks_per_host))
    settings = {"TF_NUM_INTRAOP_THREADS": threads, "OMP_NUM_THREADS": threads}
    for name, value in (settings | machine.fast_kernels()).items():
        os.environ.setdefault(name, value)
    set_environment()

    from tfdp.tools.plan import plan_models

    assert options.model is not None  # the caller's condition
    return plan_models.build(options.model)


def _of_model(options: PlanOptions, model: keras.Model, batch: int, timed: bool) -> Workload:
    from tfdp.tools.plan import measuring

    return measuring.workload(model, batch, options.optimizer, timed)


def _of_logs(options: PlanOptions) -> tuple[Recorded, Workload]:
    """Returns the logs' run, and its work, with the gradients and the memory of `--model`.

    Raises:
      InputError: The logs are of another model, or tell no steps.
    """
    assert options.logs is not None  # the caller's condition
    run = _recorded(options.logs, None)
    work = _batched(run.work, options)
    if options.model:
        of_model = _of_model(options, _built(options, 1), work.batch, False)
        run = _recorded(options.logs, of_model.tensors)
        kept = _OF_LOGS if options.optimizer else (*_OF_LOGS, "slots")
        work = dataclasses.replace(of_model, **{name: getattr(work, name) for name in kept})
    elif options.optimizer:
        work = dataclasses.replace(work, slots=SLOTS[options.optimizer])
    return run, work


def _recorded(logs: pathlib.Path, tensors: tuple[GradientTensor, ...] | None) -> Recorded:
    try:
        found = recorded(read_run(logs), tensors)
    except ValueError as error:
        raise InputError(str(error)) from error
    if found is None:
        raise InputError(
            "`logs` must have sampled steps, without a synchronization and by a topology of tfdp; "
            f"received {str(logs)!r}, which has none; train some 50 steps with "
            "`tfdp.callbacks.Telemetry(log_dir, sample_every=5)` under a "
            "`tfdp.DataParallelStrategy`."
        )
    return found


def _batched(work: Workload, options: PlanOptions) -> Workload:
    """Returns the work at another batch: times of the passes are taken to grow with it."""
    factor = (options.batch or work.batch) / work.batch
    return dataclasses.replace(
        work,
        batch=options.batch or work.batch,
        forward_seconds=factor * work.forward_seconds,
        backward_seconds=factor * work.backward_seconds,
    )


def read_links(path: pathlib.Path) -> ClusterModel:
    """Reads the links that `tfdp doctor --json`, or the decision of `topology="auto"`, has written.

    Returns:
      The links, and the ranks and hosts between which they were measured.

    Raises:
      InputError: The file holds none, or its links contradict each other.

    >>> read_links(pathlib.Path("no.json"))
    Traceback (most recent call last):
    tfdp.tools.plan.plan_inputs.InputError: `links` must be a file that `tfdp doctor --json FILE`
    wrote, ...
    """
    try:
        content = json.loads(path.read_text())
        links, hosts = Links(**content["links"]), Counter(content["hosts"])
        per_host = max(hosts.values())
        slower = links.bytes_per_second_inside < links.bytes_per_second_between
        if slower and len(hosts) > 1 and per_host > 1:
            raise ValueError("ranks of a host are further from each other than hosts")
        return ClusterModel(len(hosts) * per_host, per_host, links)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(
            "`links` must be a file that `tfdp doctor --json FILE` wrote, or the strategy's "
            f"TFDP_TOPOLOGY_FILE; received {str(path)!r} ({type(error).__name__}: {error}); do "
            "`tfdp run -n 2 -- tfdp doctor --json links.json`."
        ) from error


def cluster(options: PlanOptions, inputs: PlanInputs, ranks: int) -> ClusterModel:
    """Returns the cluster of so many ranks.

    Ranks that were timed on this machine's cores share them, as `tfdp run` starts them: with more
    ranks on a host than cores, each takes longer.

    Raises:
      ValueError: The ranks do not fill hosts, the links contradict each other, or nobody has
        measured links of a kind that the cluster has.
    """
    slowdown = 1.0
    if inputs.measured_here:
        slowdown = max(1.0, min(ranks, inputs.ranks_per_host) / len(machine.cores()))
    if inputs.measured is None:
        return ClusterModel(ranks, inputs.ranks_per_host, _described(options, slowdown), slowdown)
    measured = inputs.measured
    found = ClusterModel(ranks, inputs.ranks_per_host, measured.links, slowdown)
    lacks_between = found.hosts > 1 and measured.hosts == 1
    lacks_inside = found.ranks_of_host > 1 and measured.ranks_of_host == 1
    without = ", without `--links`" if options.links else ""
    for what, lacks, fix in (
        ("between hosts", lacks_between and not options.link, "`--link 10gbit,50us`"),
        ("inside a host", lacks_inside, f"`--link 10gbit,50us --inside 100gbit,5us`{without}"),
    ):
        if lacks:
            source = options.links or options.logs
            raise ValueError(
                f"The links {what} must be measured or described, for {found.hosts} hosts of "
                f"{found.ranks_of_host} ranks, but {str(source)!r} has {measured.hosts} of "
                f"{measured.ranks_of_host}. Describe the links by {fix}."
            )
    if lacks_between and options.link:
        found = dataclasses.replace(found, links=_reaching(measured.links, options.link))
    return found


def _reaching(measured: Links, link: Link) -> Links:
    """Returns links that were measured inside a host, and a described one between hosts.

    What the engine takes for a message, and for a byte, is in what was measured: a message to
    another host takes as long, and the link's latency; and no more bytes a second reach it.
    """
    latency, rate = measured.latency_seconds_inside, measured.bytes_per_second_inside
    step = measured.engine_step_seconds
    ends = link.bits_per_second, link.latency_seconds
    described = described_links(*ends, *ends).bytes_per_second_between
    return dataclasses.replace(
        measured,
        latency_seconds_between=latency + link.latency_seconds,
        bytes_per_second_between=min(rate, described),
        engine_step_seconds=None if step is None else step + link.latency_seconds,
    )


def _described(options: PlanOptions, slowdown: float) -> Links:
    """Returns the links that the options describe; what they do not is assumed, and no nearer."""
    inside, between = options.inside, options.link
    if between is None:
        near = inside or _INSIDE
        between = Link(
            min(_BETWEEN.bits_per_second, near.bits_per_second),
            max(_BETWEEN.latency_seconds, near.latency_seconds),
        )
    if inside is None:
        inside = Link(
            max(_INSIDE.bits_per_second, between.bits_per_second),
            min(_INSIDE.latency_seconds, between.latency_seconds),
        )
    return described_links(
        between.bits_per_second,
        between.latency_seconds,
        inside.bits_per_second,
        inside.latency_seconds,
        options.engine or "tensorflow",
        slowdown,
    )
