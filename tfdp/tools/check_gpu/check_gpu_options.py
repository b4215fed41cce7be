"""The options of `tfdp check-gpu`."""

import dataclasses
import pathlib

from tfdp.base.command_line import check, option
from tfdp.tools.check_gpu.stages import NAMES, STAGES, Stage


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
