"""The hints at what is wrong, each with its fix: pure functions of the ranks' facts."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from tfdp.base import machine
from tfdp.base.hooks import versions
from tfdp.base.words import ranks_in_words
from tfdp.tools.doctor.rank_facts import RankFacts

_MIN_INTEROP_THREADS = 8


@dataclasses.dataclass(frozen=True)
class Hint:
    """A recommendation of something to change.

    Args:
      text: What should hold, what was found, and the fix.
      ranks: The ranks that the hint is about.
    """

    text: str
    ranks: tuple[int, ...]


def hints(ranks: Sequence[RankFacts]) -> list[Hint]:
    """Returns all hints about these ranks, which are the whole cluster; equal hints are joined.

    >>> [hint] = hints([RankFacts(environment={"TF_NUM_INTEROP_THREADS": "2"})])
    >>> hint.text
    'TF_NUM_INTEROP_THREADS should be at least 8 on CPU devices, but is 2: ...'
    """
    found: dict[str, list[int]] = {}
    for facts in ranks:
        for text in _of_one(facts):
            found.setdefault(text, []).append(facts.rank)
    by_host: dict[str, list[RankFacts]] = collections.defaultdict(list)
    for facts in ranks:
        by_host[facts.host].append(facts)
    for neighbours in by_host.values():
        for text in _of_host(neighbours):
            found.setdefault(text, []).extend(facts.rank for facts in neighbours)
    for text in _of_gpus(ranks):
        found.setdefault(text, []).extend(facts.rank for facts in ranks if facts.uses_gpu)
    return [Hint(text, tuple(about)) for text, about in found.items()]


def _of_one(facts: RankFacts) -> Iterator[str]:
    yield from _untested_versions(facts)
    yield from _another_backend(facts)
    yield from _unused_gpus(facts)
    if not facts.uses_gpu:
        yield from _few_interop_threads(facts)
    else:
        yield from _gpu_settings(facts)


def _untested_versions(facts: RankFacts) -> Iterator[str]:
    for package, name, install in (
        ("tensorflow", "TensorFlow", "pip install tensorflow-cpu=={0}`, or `tensorflow=={0}"),
        ("keras", "Keras", "pip install keras=={0}"),
    ):
        installed, tested = facts.versions.get(package), list(versions.tested(package))
        if installed is not None and installed not in tested:
            yield (
                f"{name} should be {' or '.join(tested)}, with which tfdp is tested, but is "
                f"{installed}. Do `{install.format(tested[-1])}`."
            )


def _another_backend(facts: RankFacts) -> Iterator[str]:
    backend = facts.environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        yield (
            f"KERAS_BACKEND should be tensorflow, on which tfdp trains, but is {backend!r}. "
            "Do `export KERAS_BACKEND=tensorflow`."
        )


def _unused_gpus(facts: RankFacts) -> Iterator[str]:
    if facts.gpus == 0 or facts.uses_gpu:
        return
    found = f"The host's GPUs ({facts.gpus}) should be used, but the replicas are on the CPU"
    visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if not facts.built_with_cuda:
        yield (
            f"{found}: this TensorFlow is built without CUDA. Do "
            "`pip uninstall tensorflow-cpu` and `pip install 'tfdp[gpu]'`."
        )
    elif visible is not None:
        yield (
            f"{found}: CUDA_VISIBLE_DEVICES is {visible!r}. Do `unset CUDA_VISIBLE_DEVICES`, or "
            "name the GPUs in it."
        )
    else:
        yield (
            f"{found}: TensorFlow cannot load CUDA's libraries. Do `pip install 'tfdp[gpu]'`; "
            "`TF_CPP_MIN_LOG_LEVEL=0 tfdp doctor` tells which are missing."
        )


def _few_interop_threads(facts: RankFacts) -> Iterator[str]:
    threads = _threads(facts, "TF_NUM_INTEROP_THREADS")
    if threads >= _MIN_INTEROP_THREADS:
        return
    set_to = facts.environment.get("TF_NUM_INTEROP_THREADS")
    found = f"is {set_to}" if set_to else f"is not set, which means one per core, {threads}"
    yield (
        f"TF_NUM_INTEROP_THREADS should be at least {_MIN_INTEROP_THREADS} on CPU devices, but "
        f"{found}: with few threads the iterators of datasets can wait for each other for ever. Do "
        f"`export TF_NUM_INTEROP_THREADS={_MIN_INTEROP_THREADS}`; `tfdp run` does it for its ranks."
    )


def _gpu_settings(facts: RankFacts) -> Iterator[str]:
    reasons = {
        "TF_FORCE_GPU_ALLOW_GROWTH": "TensorFlow takes all of a GPU's memory, and NCCL finds none",
        "TF_GPU_THREAD_MODE": "what starts a GPU's work waits behind the host's",
    }
    for name, value in machine.gpu_settings().items():
        found = facts.environment.get(name)
        if found is None:
            yield (
                f"{name} should be {value} on GPUs, but is not set: {reasons[name]}. Do `export "
                f"{name}={value}`; `tfdp run` does it for its ranks."
            )


def _of_gpus(ranks: Sequence[RankFacts]) -> Iterator[str]:
    """Yields the hints about the GPUs of all ranks together."""
    on_gpus = [facts for facts in ranks if facts.uses_gpu]
    if sum(len(facts.devices) for facts in on_gpus) < 2:
        return
    kinds = sorted({kind for facts in on_gpus for kind in facts.gpu_kinds})
    if len(kinds) > 1:
        yield (
            f"All GPUs should be of one kind, but there are {' and '.join(kinds)}: each step waits "
            "for the slowest, and kinds that round otherwise give other bits of what all compute. "
            "Name those of one kind in CUDA_VISIBLE_DEVICES."
        )
    parts = sorted({gpu for facts in on_gpus for gpu in facts.own_gpus if gpu.startswith("MIG-")})
    if parts:
        yield (
            f"NCCL should be given whole GPUs, which it connects, but {', '.join(parts)} are parts "
            "of one (MIG). Train on one part alone, or have the GPUs undivided: `nvidia-smi -mig "
            "0`, as root."
        )


def _of_host(neighbours: Sequence[RankFacts]) -> Iterator[str]:
    """Yields the hints about the ranks of one host together."""
    if len(neighbours) == 1:
        return
    together = {core for facts in neighbours for core in facts.cores}
    threads = sum(_threads(facts, "TF_NUM_INTRAOP_THREADS") for facts in neighbours)
    if threads > len(together) and threads > len(neighbours):
        share = max(1, len(together) // len(neighbours))
        host = neighbours[0].host
        yield (
            f"The {len(neighbours)} ranks on {host} should share its cores ({len(together)}), but "
            f"compute with {threads} threads together: they take the cores from each other. Do "
            f"`export TF_NUM_INTRAOP_THREADS={share} OMP_NUM_THREADS={share}`, or bind each rank "
            "to cores of its own; `tfdp run` sets both for its ranks."
        )
    used = [gpu for facts in neighbours for gpu in facts.own_gpus]
    shared = sorted({gpu for gpu in used if used.count(gpu) > 1})
    if all(facts.uses_gpu for facts in neighbours) and shared:
        yield (
            "Each rank should have GPUs of its own, but several ranks of one host use "
            f"{', '.join(f'GPU {gpu}' for gpu in shared)}. Start them with `tfdp run`, `srun` or "
            "`mpirun`, or set CUDA_VISIBLE_DEVICES for each rank: to its local rank where a rank "
            "has one GPU."
        )


def _threads(facts: RankFacts, variable: str) -> int:
    """Returns the number of threads that a setting means: one per core unless it is above 0."""
    text = facts.environment.get(variable, "")
    return int(text) if text.isdecimal() and int(text) > 0 else len(facts.cores)


def described(hint: Hint, world_size: int) -> str:
    """Returns a hint as it is printed.

    >>> described(Hint("Do this.", (0, 2)), world_size=3)
    'hint (ranks 0, 2): Do this.'
    """
    if world_size == 1:
        return f"hint: {hint.text}"
    return f"hint ({ranks_in_words(hint.ranks)}): {hint.text}"
