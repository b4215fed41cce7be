"""What a stage finds, as its worker prints it, the command shows it and the file keeps it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

#: As it should be; not as it should be; no answer, with the reason; killed at the limit; not asked.
STATES = ("works", "differs", "failed", "hangs", "skipped")


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


def line(stage: str, finding: StageFinding, seconds: float) -> str:
    """Returns what the command prints of a stage.

    >>> line("nccl", StageFinding("works", "float32"), 12.3)
    'nccl       works    12 s  float32'
    """
    said = " ".join(finding.said.split())
    return f"{stage:<10} {finding.state:<7} {seconds:>3.0f} s  {said}"
