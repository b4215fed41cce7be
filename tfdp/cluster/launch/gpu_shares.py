"""The GPUs that each rank of `tfdp run` gets for its own."""

from __future__ import annotations

from collections.abc import Mapping

from tfdp.base import gpus, machine
from tfdp.cluster.launch.run_options import RunOptions


class TooFewGPUsError(ValueError):
    """An error where there are fewer GPUs than the ranks need."""


def gpu_shares(
    options: RunOptions, environ: Mapping[str, str], each: int | None = None
) -> list[str | None]:
    """Returns each rank's `CUDA_VISIBLE_DEVICES`; None for ranks that keep the launcher's.

    The GPUs that the launcher may use are shared evenly, or by `--gpus-per-process`. Nothing
    changes on hosts without GPUs, for one rank, and where TensorFlow is the build for CPUs and JAX
    has no plugin for GPUs, or `JAX_PLATFORMS` names others. With `-n MIN:MAX` there are as many
    shares as the GPUs give, up to MAX.

    Args:
      options: The options of the run.
      environ: The launcher's environment.
      each: The size of a share, where an earlier attempt has settled it.

    Raises:
      TooFewGPUsError: There are fewer GPUs than the ranks need.
    """
    least, most = options.ranks
    each = options.gpus_per_process or each
    on_cpus = machine.tensorflow_is_for_cpus() and machine.plugin_of_jax(environ) is None
    if each is None and (most == 1 or on_cpus):
        return [None] * most
    found = gpus.visible(environ)
    if each is None and not found:
        return [None] * most
    if len(found) < least * (each or 1):
        raise TooFewGPUsError(_too_few(least, each, len(found), environ.get(gpus.VISIBLE)))
    count = min(most, len(found) // (each or 1))
    return [",".join(gpus.share(found, rank, count, each)) for rank in range(count)]


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
