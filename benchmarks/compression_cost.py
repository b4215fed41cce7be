"""The benchmark of what a compression computes: gradients in GB/s on one core."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time

from rich.console import Console
from rich.table import Table

from benchmarks.compression import COMPRESSIONS
from benchmarks.sending import made
from tfdp.command_line import add_command, check, option, require, set_environment

_REPLICAS = 4
_ROWS = 1024


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
    """Prints a table of seconds and GB/s.

    Args:
      megabytes: The size of the gradient.
      rounds: The times that are measured; the median counts.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    table = Table(title=f"A gradient of {megabytes} MB, one of {_REPLICAS} replicas, one core")
    for column in ("compression", "ms", "GB/s"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    for name in COMPRESSIONS[1:]:
        seconds = measured(name, megabytes, rounds)
        table.add_row(name, f"{seconds * 1e3:.0f}", f"{megabytes * 1e-3 / seconds:.2f}")
    (console or Console()).print(table)
    return 0


def measured(name: str, megabytes: int, rounds: int) -> float:
    """Returns the median seconds of one compression."""
    import tensorflow as tf

    from tfdp.collectives import Transport
    from tfdp.compression import Bucket, Compression

    compression = made(name)
    shape = (_ROWS, megabytes * 10**6 // 4 // _ROWS)
    gradient = tf.random.stateless_normal(shape, [1, 2])

    def transport() -> Transport:
        # What would come from the others is the replica's own.
        return Transport(
            lambda value: value + value,
            lambda tensor: tf.stack([tensor] * _REPLICAS),
            tf.identity,
            rank=1,
            world_size=_REPLICAS,
        )

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
    return statistics.median(seconds[1:])
