"""The benchmark of what a compression computes, and of the links on which that pays.

With n replicas on links of B bytes a second, S bytes of gradients take 2(n-1)/n S / B seconds
whole, and share S / B + S / speed compressed, `share` being what a replica sends of S, and `speed`
what it compresses a second. So compressing is faster where B is below (2(n-1)/n - share) * speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.compression import COMPRESSIONS
from benchmarks.sending import made
from tfdp.base.command_line import add_command, check, option, require, set_environment

if TYPE_CHECKING:
    from tfdp.communication.collectives import Transport

_REPLICAS = 4
_WHOLE = 2 * (_REPLICAS - 1) / _REPLICAS
_ROWS = 1024
_CAST = 'Cast("bfloat16")'
_GIGABIT = 1e9 / 8
_LINKS = (0.1, 1, 10, 100)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one compression.

    Args:
      seconds: The time that a replica computes for a gradient.
      speed: The bytes of gradients that it compresses a second.
      share: The bytes that it sends, over those of the gradient.
    """

    seconds: float
    speed: float
    share: float

    def pays_below(self, other: Cost | None = None) -> float:
        """Returns the bytes a second of a link below which this is faster than another way.

        Args:
          other: The other way; None: whole gradients.

        >>> int8 = Cost(seconds=0.01, speed=0.5e9, share=0.375)
        >>> cast = Cost(seconds=0.001, speed=5e9, share=0.75)
        >>> round(int8.pays_below() / 1e9, 3), round(int8.pays_below(cast) / 1e9, 3)
        (0.562, 0.208)
        """
        if other is None:
            return (_WHOLE - self.share) * self.speed
        longer = 1 / self.speed - 1 / other.speed
        return (other.share - self.share) / longer if longer > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class CostOptions:
    """The choices of one table."""

    megabytes: int = option(16, "the size of the gradient (%(default)s)", at_least=1)
    rounds: int = option(7, "the times that are measured (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_compression_cost(commands: argparse._SubParsersAction) -> None:
    """Adds `compression-cost` to the benchmarks."""
    add_command(
        commands,
        "compression-cost",
        CostOptions,
        _cost,
        help="what a compression computes, in GB/s on one core",
        description="Times what one of four replicas computes to compress and decompress a "
        "gradient, on one core, without what travels between.",
    )


def _cost(options: CostOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options.megabytes, options.rounds)


def run(megabytes: int, rounds: int, console: Console | None = None) -> int:
    """Prints what each compression computes and sends, and what a sum takes on links.

    Args:
      megabytes: The size of the gradient.
      rounds: The times that are measured; the median counts.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    costs = {name: measured(name, megabytes, rounds) for name in COMPRESSIONS[1:]}
    table = Table(
        title=f"A gradient of {megabytes} MB, one of {_REPLICAS} replicas, one core",
        caption=f"sent: bytes that a replica sends, over the gradient's; whole: {_WHOLE}. "
        "pays below: the Gbit/s of a link below which a sum takes less time than of whole "
        f"gradients; beside Cast: than by {_CAST}.",
    )
    for column in ("compression", "ms", "GB/s", "sent", "pays below", "beside Cast"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    for name, cost in costs.items():
        beside = "" if name.startswith("Cast") else _in_gigabits(cost.pays_below(costs[_CAST]))
        table.add_row(
            name,
            f"{cost.seconds * 1e3:.0f}",
            f"{cost.speed / 1e9:.2f}",
            f"{cost.share:.3f}",
            _in_gigabits(cost.pays_below()),
            beside,
        )
    console = console or Console()
    console.print(table)
    console.print(_by_link(costs, megabytes))
    return 0


def _by_link(costs: Mapping[str, Cost], megabytes: int) -> Table:
    """Returns a table of the milliseconds of a sum, computed from the costs, for each link."""
    gradient = megabytes * 10**6
    table = Table(title=f"Milliseconds of a sum of {megabytes} MB, by the Gbit/s of each link")
    table.add_column("compression")
    for link in _LINKS:
        table.add_column(f"{link:g}", justify="right")
    for name, cost in {"whole gradients": None, **costs}.items():
        seconds = [
            gradient * (cost.share if cost else _WHOLE) / (link * _GIGABIT)
            + (gradient / cost.speed if cost else 0)
            for link in _LINKS
        ]
        table.add_row(name, *(f"{1e3 * each:.0f}" for each in seconds))
    return table


def _in_gigabits(rate: float) -> str:
    return "any" if math.isinf(rate) else f"{rate / _GIGABIT:.1f}"


def measured(name: str, megabytes: int, rounds: int) -> Cost:
    """Returns the median cost of one compression."""
    import tensorflow as tf

    from tfdp.communication.collectives import Transport
    from tfdp.compression import Bucket, Compression

    compression = made(name)
    shape = (_ROWS, megabytes * 10**6 // 4 // _ROWS)
    gradient = tf.random.stateless_normal(shape, [1, 2])

    transports: list[Transport] = []

    def transport() -> Transport:
        # What would come from the others is the replica's own.
        transports.append(
            Transport(
                lambda value: value + value,
                lambda tensor: tf.stack([tensor] * _REPLICAS),
                tf.identity,
                rank=1,
                world_size=_REPLICAS,
            )
        )
        return transports[-1]

    @tf.function(autograph=False)
    def whole(gradient: tf.Tensor) -> list[tf.Tensor]:
        return [compression.sum(gradient, transport())]

    @tf.function(autograph=False)
    def update(gradient: tf.Tensor, slots: dict[str, tf.Tensor], step: tf.Tensor) -> list:
        found = compression.sum(Bucket([gradient], [slots], (0,), step), transport())
        return [found.sums, found.slots]

    if isinstance(compression, Compression):
        call = functools.partial(whole, gradient)
    else:
        slots = {slot: made.first() for slot, made in compression.slots(shape).items()}
        call = functools.partial(update, gradient, slots, tf.constant(3))
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        tf.nest.map_structure(lambda tensor: tensor[..., 0].numpy(), call())
        seconds.append(time.perf_counter() - began)
    (used,) = transports  # each function is traced once
    median, whole = statistics.median(seconds[1:]), 4 * gradient.shape.num_elements()
    return Cost(median, whole / median, _sent(used) / whole)


def _sent(transport: Transport) -> float:
    """Returns the bytes that a replica sends, by the model of a ring."""

    def total(tensors: Sequence[Any]) -> int:
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)

    summed, others = total(transport.sent), _REPLICAS - 1
    to_one = total(transport.exchanged) + 2 * summed
    return others * (total(transport.gathered) + to_one / _REPLICAS)
