"""What `tfdp bench fit` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib

MODELS = ("mlp", "mobilenet")
SIDES = ("tfdp", "stock", "one_device")


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """The choices of one benchmark run; they are checked here.

    Args:
        models: some of `"mlp"` and `"mobilenet"`.
        replicas: the numbers of replicas to measure, each at least 1.
        batch: examples per replica and step.
        processes: fresh processes a side.
        steps: timed steps a process, after the first.
        one_device: also measure one device that is given the global batch.
        timeout_seconds: the deadline of each process.
        json: a file for the raw results, or None.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> BenchOptions(one_device=True).sides
        ('tfdp', 'stock', 'one_device')
    """

    models: tuple[str, ...] = MODELS
    replicas: tuple[int, ...] = (2, 4)
    batch: int = 16
    processes: int = 5
    steps: int = 20
    one_device: bool = False
    timeout_seconds: float = 600.0
    json: pathlib.Path | None = None

    def __post_init__(self) -> None:
        for model in self.models:
            if model not in MODELS:
                raise ValueError(
                    f"`model` must be one of {', '.join(MODELS)}, all; received {model!r}; "
                    "do `--model all`."
                )
        if not self.replicas or min(self.replicas) < 1:
            raise ValueError(
                "`replicas` must be numbers from 1 up; "
                f"received {','.join(map(str, self.replicas))!r}; do `--replicas 2,4`."
            )
        for name in ("batch", "processes", "steps", "timeout_seconds"):
            value = getattr(self, name)
            if value <= 0:
                flag = name.removesuffix("_seconds")
                default = type(self).__dataclass_fields__[name].default
                raise ValueError(
                    f"`{flag}` must be positive; received {value}; do `--{flag} {default:g}`."
                )
        if self.json is not None and not self.json.parent.is_dir():
            raise ValueError(
                f"`json` must be in a directory that exists; received {str(self.json)!r}; "
                f"do `mkdir -p {self.json.parent}`."
            )

    @property
    def sides(self) -> tuple[str, ...]:
        """What is measured in each round, in this order."""
        return SIDES if self.one_device else SIDES[:2]
