"""The options of `tfdp plan`."""

import dataclasses
import math
import pathlib

from tfdp.base.command_line import check, option
from tfdp.tools.plan import quantities
from tfdp.tools.prediction.cluster_model import ENGINES, check_ranks
from tfdp.tools.prediction.memory import SHARDS
from tfdp.tools.prediction.ranking import TOPOLOGIES
from tfdp.tools.prediction.sending import COMPRESSIONS
from tfdp.tools.prediction.workload import SLOTS


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The choices of one plan.

    Raises:
      ValueError: A value is out of its range, or two of them contradict each other.

    >>> PlanOptions(parameters=25_600_000, examples_per_second=200.0).ranks
    (1, 2, 4, 8, 16)
    """

    model: str | None = option(
        None,
        "the model: FILE.py:FUNCTION or MODULE:FUNCTION that builds it, FILE.keras, or a name of "
        "keras.applications",
    )
    parameters: int | None = option(
        None,
        "in place of a model: the number of its weights, such as 350M",
        parse=quantities.count,
    )
    logs: pathlib.Path | None = option(
        None, "a folder that Telemetry wrote: its steps are taken as measured", metavar="LOG_DIR"
    )
    batch: int | None = option(
        None,
        "examples of a rank in a step (that of the logs, else 32)",
        at_least=1,
        at_most=2**31,
        example="32",
    )
    examples_per_second: float | None = option(
        None,
        "the rate of one rank alone; otherwise the model is timed on this machine",
        above=0,
        example="220",
    )
    chip: quantities.Chip | None = option(
        None,
        "in place of this machine: a chip's operations and its memory's bytes a second, for which "
        "XLA's compiled step is counted",
        parse=quantities.chip,
        metavar="RATE,BYTES",
    )
    optimizer: str | None = option(
        None,
        "the optimizer, for its memory (the model's own, else adam)",
        choices=tuple(sorted(SLOTS)),
        example="adam",
    )
    ranks: tuple[int, ...] = option(
        (1, 2, 4, 8, 16), "numbers of ranks, with commas between", flags=("-n", "--ranks")
    )
    ranks_per_host: int | None = option(
        None, "ranks of each host (that of the logs or links, else 1)", at_least=1, example="8"
    )
    link: quantities.Link | None = option(
        None,
        "between hosts: rate and latency (assumed: 10gbit,50us)",
        parse=quantities.link,
        metavar="RATE,LATENCY",
    )
    inside: quantities.Link | None = option(
        None,
        "inside a host: rate and latency (assumed: 100gbit,5us)",
        parse=quantities.link,
        metavar="RATE,LATENCY",
    )
    links: pathlib.Path | None = option(
        None,
        "links as measured: what `tfdp doctor --json FILE`, or TFDP_TOPOLOGY_FILE, wrote; with "
        "`--link` those inside a host",
        metavar="FILE",
    )
    engine: str | None = option(
        None, "the engine on described links (tensorflow)", choices=tuple(ENGINES)
    )
    deviation: float | None = option(
        None,
        "relative deviation of ranks' computing times (that of the logs, else 0)",
        at_least=0,
        at_most=2,
        example="0.05",
    )
    topology: tuple[str, ...] = option(
        TOPOLOGIES, "topologies to compare (all)", choices=TOPOLOGIES
    )
    compression: tuple[str, ...] = option(
        ("none", "bfloat16", "int8", "powersgd"),
        "compressions to compare (none,bfloat16,int8,powersgd)",
        choices=tuple(COMPRESSIONS),
    )
    accumulation: int | None = option(
        None,
        "gradient_accumulation_steps (that of the logs, else 1)",
        at_least=1,
        at_most=2**31,
        example="4",
    )
    shard: str = option("none", "the sharded state (%(default)s)", choices=SHARDS)
    memory: float | None = option(
        None,
        "the memory of a rank: prints from how many ranks on the model fits",
        parse=quantities.size,
        metavar="SIZE",
    )
    output: pathlib.Path | None = option(
        None, "write a page with the scaling curve", writes=(".html", ".htm"), metavar="FILE.html"
    )

    def __post_init__(self) -> None:
        check(self)
        for ranks in self.ranks:
            check_ranks(ranks)
        given = [name for name in ("model", "parameters", "logs") if getattr(self, name)]
        if not given:
            raise ValueError(
                "One of `--model`, `--parameters` and `--logs` must say what is trained; received "
                "none; do `--model ResNet50`."
            )
        beside = [name for name in ("logs", "examples_per_second") if getattr(self, name)]
        if self.chip and (not self.model or beside):
            received = f"it with {' and '.join(beside)}" if beside else "it without a model"
            raise ValueError(
                "`chip` must say alone what a rank computes, of a model; received "
                f"{received.replace('_', '-')}; do `--model ResNet50 --chip 495tflops,3.35TB`."
            )
        if self.parameters and (self.model or self.logs):
            raise ValueError(
                "`parameters` must be in place of a model and of logs, which tell their weights; "
                "received both; leave `--parameters` out."
            )
        if self.examples_per_second == math.inf:
            raise ValueError(
                "`examples-per-second` must be finite; received inf; do `--examples-per-second "
                "220`."
            )
        if self.parameters and not self.examples_per_second and not self.memory:
            raise ValueError(
                "`parameters` must come with what a rank computes; received no rate; do "
                "`--examples-per-second 220`, or `--memory 8GB` to ask for memory alone."
            )
        if self.logs and self.examples_per_second:
            raise ValueError(
                "`logs` and `examples-per-second` must not both say what a rank computes; "
                "received both; leave one out."
            )
        if self.links and self.inside:
            raise ValueError(
                "`links` and `inside` must not both say what the links inside a host are; received "
                "both; leave `--inside` out, or the measured file."
            )
        if self.engine and (self.links or (self.logs and not (self.link or self.inside))):
            raise ValueError(
                "`engine` must go with links that are described: measured ones hold what theirs "
                f"costs; received {self.engine!r} and measurements; leave `--engine` out, or "
                "describe the links by `--link`."
            )

    @property
    def sorted_ranks(self) -> tuple[int, ...]:
        """The numbers of ranks, each once, ascending."""
        return tuple(sorted(set(self.ranks)))
