"""The GPUs that each rank of `tfdp run` gets for its own."""

from __future__ import annotations

from collections.abc import Mapping

from tfdp import gpus, machine
from tfdp.launch.run_options import RunOptions


class TooFewGPUsError(ValueError):
    """An error where there are fewer GPUs than the ranks need."""


def gpu_shares(options: RunOptions, environ: Mapping[str, str]) -> list[str | None]:
    """Returns each rank's `CUDA_VISIBLE_DEVICES`; None for ranks that keep the launcher's.

    The GPUs that the launcher may use are shared evenly, or by `--gpus-per-process`. Nothing
    changes on hosts without GPUs, for one rank, and where TensorFlow is the build for CPUs.

    Raises:
      TooFewGPUsError: There are fewer GPUs than the ranks need.
    """
    processes, each = options.processes, options.gpus_per_process
    if each is None and (processes == 1 or machine.tensorflow_is_for_cpus()):
        return [None] * processes
    found = gpus.visible(environ)
    if each is None and not found:
        return [None] * processes
    if len(found) < processes * (each or 1):
        raise TooFewGPUsError(_too_few(processes, each, len(found), environ.get(gpus.VISIBLE)))
    return [",".join(gpus.share(found, rank, processes, each)) for rank in range(processes)]


def _too_few(processes: int, each: int | None, found: int, chosen: str | None) -> str:
    there_are = f"{found} GPU{'s' * (found != 1)}"
    if chosen is not None:
        there_are += f" ({gpus.VISIBLE}={chosen!r})"
    on_cpus = f"train on CPUs: `{gpus.VISIBLE}=-1 tfdp run -n {processes} ...`"
    if each is None:
        return (
            f"`-n` must not exceed the GPUs, of which each rank has its own; received {processes} "
            f"and {there_are}; do `-n {found}`, or {on_cpus}."
        )
    fewer = f"`--gpus-per-process {found // processes}`" if found >= processes else "fewer ranks"
    return (
        f"`gpus-per-process` times `-n` must not exceed the GPUs; received {each} times "
        f"{processes} and {there_are}; do {fewer}, or leave the option out and {on_cpus}."
    )
