"""What `tfdp bench fit` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib

MODELS = ("mlp", "mobilenet")
SIDES = ("tfdp", "stock", "stock_tuned", "one_device")


def default_replicas(processes: int) -> tuple[int, ...]:
    """What is measured where nothing else is asked for.

    Example:
        >>> default_replicas(1), default_replicas(3)
        ((2, 4), (3,))
    """
    return (2, 4) if processes == 1 else (processes,)


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """The choices of one benchmark run; they are checked here.

    Args:
        models: some of `"mlp"` and `"mobilenet"`.
        replicas: the numbers of replicas to measure, each at least 1.
        batch: examples per replica and step.
        rounds: fresh runs a side.
        processes: processes a run, on this host's CPU, with one replica each; 1: all replicas in
            one process.
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
    rounds: int = 5
    processes: int = 1
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
        for name in ("batch", "rounds", "processes", "steps", "timeout_seconds"):
            value = getattr(self, name)
            if value <= 0:
                flag = name.removesuffix("_seconds")
                default = type(self).__dataclass_fields__[name].default
                raise ValueError(
                    f"`{flag}` must be positive; received {value}; do `--{flag} {default:g}`."
                )
        if self.processes > 1 and set(self.replicas) != {self.processes}:
            raise ValueError(
                "`replicas` must be the number of processes, for MultiWorkerMirroredStrategy has "
                f"one CPU device in each; received {','.join(map(str, self.replicas))} and "
                f"{self.processes} processes; do `--replicas {self.processes}`."
            )
        if self.json is not None and not self.json.parent.is_dir():
            raise ValueError(
                f"`json` must be in a directory that exists; received {str(self.json)!r}; "
                f"do `mkdir -p {self.json.parent}`."
            )

    @property
    def sides(self) -> tuple[str, ...]:
        """What is measured in each round, in this order.

        In several processes the stock strategy is measured twice: as its users start it, and with
        the threads and memory settings of `tfdp run`.
        """
        tuned = ("stock_tuned",) if self.processes > 1 else ()
        return ("tfdp", "stock", *tuned, *(("one_device",) if self.one_device else ()))
