"""The stages of the check: what each asks, how long it may take, and what it finds."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from tfdp.base.command_line import check, option

#: As it should be; not as it should be; no answer, with the reason; killed at the limit; not asked.
STATES = ("works", "differs", "failed", "hangs", "skipped")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A question about this machine's GPUs, answered by processes of its own.

    Args:
      name: Its name in `--stages` and in the file.
      asks: What it finds out, for `--help` and the documentation.
      limit_seconds: The time after which its processes are killed.
      gpus: The number of GPUs that it needs.
    """

    name: str
    asks: str
    limit_seconds: float
    gpus: int = 1


# Twenty-four minutes together.
STAGES = (
    Stage("devices", "TensorFlow sees the GPUs, and each multiplies right", 60, gpus=0),
    Stage("nccl", "NCCL starts, with one rank, for each type of number that is given to it", 60),
    Stage("parts", "several replicas on parts of one GPU train like the GPU", 300),
    Stage("draws", "replicas draw what one device draws", 90),
    Stage("gpus", "replicas on a GPU each add up right by NCCL, and train like one", 240, gpus=2),
    Stage("processes", "so do processes with a GPU each, in one all-reduce", 90, gpus=2),
    Stage("speed", "a step beside MirroredStrategy's, and DDP's where PyTorch is installed", 270),
    Stage("profile", "copies between memories in a step, beside one device's", 90),
    Stage("xla", "XLAStrategy trains like the CPU; a step beside Keras on JAX's", 240, gpus=0),
)

NAMES = tuple(stage.name for stage in STAGES)


@dataclasses.dataclass(frozen=True)
class CheckGpuOptions:
    """The choices of one check.

    Raises:
      ValueError: A value is out of its range.

    >>> [stage.name for stage in CheckGpuOptions(stages=("speed", "nccl")).chosen]
    ['nccl', 'speed']
    """

    stages: tuple[str, ...] = option(
        NAMES, "what to check, with a comma between (all)", choices=NAMES, metavar="STAGES"
    )
    device: str = option(
        "GPU",
        "what is checked (%(default)s); CPU tries the check itself, on logical devices",
        choices=("GPU", "CPU"),
    )
    parts: int = option(
        3, "replicas on parts of one GPU, of 2 GiB each (%(default)s)", at_least=2, metavar="P"
    )
    json: pathlib.Path = option(
        pathlib.Path("check-gpu.json"),
        "where all findings are written, after each stage (%(default)s)",
        writes=(),
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def chosen(self) -> tuple[Stage, ...]:
        """The stages to run, in their own order."""
        return tuple(stage for stage in STAGES if stage.name in self.stages)


@dataclasses.dataclass(frozen=True)
class StageFinding:
    """The answer of a stage.

    Args:
      state: One of :data:`STATES`.
      said: A line for the user.
      details: What else was measured; JSON.
    """

    state: str
    said: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong, as far as it was asked.

        >>> StageFinding("skipped", "there is one GPU").is_well, StageFinding("hangs", "").is_well
        (True, False)
        """
        return self.state in ("works", "skipped")


def trained_alike(programs: Mapping[str, Mapping[str, Any]], like: str) -> tuple[bool, str]:
    """Returns whether all programs train like another device, and says which do not, or how far.

    Args:
      programs: By name whether each is "equal", and the largest "difference" or an "error".
      like: The other device.

    >>> trained_alike({"mlp": {"equal": True, "difference": 3e-7}}, "the CPU")
    (True, 'mlp train like the CPU, within 3.0e-07')
    """
    unlike = [name for name, each in programs.items() if not each["equal"]]
    if unlike:
        first = programs[unlike[0]]
        why = first.get("error") or f"parts by {first['difference']:.1e}"
        return False, f"not like {like}: {', '.join(unlike)} ({unlike[0]}: {why})"
    largest = max(each["difference"] for each in programs.values())
    return True, f"{', '.join(programs)} train like {like}, within {largest:.1e}"


def line(stage: str, finding: StageFinding, seconds: float) -> str:
    """Returns what the command prints of a stage.

    >>> line("nccl", StageFinding("works", "float32"), 12.3)
    'nccl       works    12 s  float32'
    """
    said = " ".join(finding.said.split())
    return f"{stage:<10} {finding.state:<7} {seconds:>3.0f} s  {said}"
