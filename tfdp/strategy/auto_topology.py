"""The decision of `topology="auto"`: measured, or taken from the file that keeps it."""

import logging
import os
import pathlib
import time

from tfdp.base import determinism
from tfdp.base.atomic_files import replace_text
from tfdp.strategy.extended import DataParallelExtended
from tfdp.topology import Auto, Native, Rule, decide, serialization

FILE_VARIABLE = "TFDP_TOPOLOGY_FILE"


def decided(extended: DataParallelExtended) -> Auto:
    """Returns the decision for the strategy's ranks, the same on all, and logs which it is and why.

    Where `TFDP_TOPOLOGY_FILE` names a file that exists, rank 0's decision is taken from this file;
    otherwise it is measured and written to the file. `tfdp.communication.collectives.Probe.links`
    says what is measured, and at what cost. On NCCL its own sums are measured, and decide the size
    of buckets.

    Raises:
      ValueError: The file holds something else, or a decision for other ranks; or
        `tfdp.enable_determinism` was called and no file is named.
      OSError: The file can be neither read nor written.
    """
    began = time.perf_counter()
    hosts, processes = extended.hosts(), extended.processes
    first = processes.rank == 0
    if len(hosts) == 1:
        return _alone()
    path = os.environ.get(FILE_VARIABLE)
    if determinism.chosen_seed() is not None and not path and first:
        raise ValueError(
            f'After `tfdp.enable_determinism` {FILE_VARIABLE} must name a file for topology="auto"'
            ", but it is not set: what is measured differs from run to run, and with it the order "
            f"of sums. Do `export {FILE_VARIABLE}=topology.json`: the first run writes the "
            'decision, later ones take it from there. Or name a topology: topology="ring".'
        )
    own = _read(path) if path and first else None
    text = processes.from_first("the decision on the topology", own).value
    if text:
        auto = serialization.loads(text, hosts, path or "that of rank 0")
        origin = f"as {path or 'the file of rank 0'} says"
    else:
        probe = extended.probe()
        if extended.is_nccl:
            auto = decide(len(hosts), hosts, probe.links_of_sums(), [Native()])
        else:
            auto = decide(len(hosts), hosts, probe.links())
        origin = f"measured in {time.perf_counter() - began:.1f} s"
        if path and first:
            replace_text(pathlib.Path(path), serialization.dumps(auto, hosts))
    if first:
        logging.getLogger("tfdp").info("topology auto: %s", _described(auto, hosts, origin))
    return auto


def _alone() -> Auto:
    return Auto((Rule(None, Native()),), bucket_bytes=25 * 2**20)


def _described(auto: Auto, hosts: list[int], origin: str) -> str:
    links = auto.links
    assert links is not None
    inside = (
        f"{links.latency_seconds_inside * 1e3:.2f} ms and "
        f"{links.bytes_per_second_inside / 1e6:.0f} MB/s inside a host"
    )
    between = (
        f"{links.latency_seconds_between * 1e3:.2f} ms and "
        f"{links.bytes_per_second_between / 1e6:.0f} MB/s between hosts"
    )
    known = [inside] if len(set(hosts)) < len(hosts) else []
    known += [between] if len(set(hosts)) > 1 else []
    return (
        f"{auto.describe()}; buckets of {(auto.bucket_bytes or 0) / 2**20:g} MiB. Predicted to be "
        f"the fastest of all for {', '.join(known)}, {links.operation_seconds * 1e6:.0f} us an "
        f"operation ({origin})."
    )


def _read(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text()
    except FileNotFoundError:
        if pathlib.Path(path).parent.is_dir():
            return None
        raise FileNotFoundError(
            f"{FILE_VARIABLE} must name a file in a directory that exists, but received {path}. "
            f"Do `mkdir -p {pathlib.Path(path).parent}`."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{FILE_VARIABLE} must hold a decision that tfdp wrote, but {path} is no text "
            f"({error}). Delete it, and it is written anew."
        ) from error
