"""The benchmark of input: it writes the files, reads them, and prints two tables."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.data import measure
from benchmarks.data.cases import TFDP, Case, array_cases, image_cases, record_cases
from benchmarks.data.data_options import DataOptions
from benchmarks.data.files import write_images, write_records
from tfdp.base.atomic_files import temporary_folder
from tfdp.tools.bench.bench_tables import write_results
from tfdp.tools.bench.ratios import ratio, spread
from tutorials.datasets import load


def run(options: DataOptions, console: Console | None = None) -> int:
    """Measures every case, prints a row for each of its sides, then the other figures.

    Cost: an epoch of each side of each case in every round, and one more: some 4 minutes of two
    cores with the defaults; 250 MB of temporary files.

    Args:
      options: The options that say what to measure.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.

    Raises:
      DataUnavailableError: Fashion-MNIST is not on this machine and cannot be downloaded.
    """
    console = console or Console()
    with temporary_folder() as folder:
        results = []
        for case in _cases(options, folder):
            with console.status(f"{case.what}, {_order(case.shuffled)}"):
                seconds = measure.seconds_of(case, options.batch_size, options.rounds)
            results.append(
                {
                    "what": case.what,
                    "shuffled": case.shuffled,
                    "examples": case.examples,
                    "seconds": seconds,
                }
            )
        figures = _figures(options, results, folder)
    console.print(rates_table(options.batch_size, results))
    if figures:
        console.print(_figures_table(figures))
    if options.json is not None:
        write_results(options.json, dataclasses.asdict(options), [*results, figures], [])
        console.print(f"Raw results: {options.json}", soft_wrap=True, highlight=False)
    return 0


def rates_table(batch_size: int, results: Sequence[dict[str, Any]]) -> Table:
    """Returns a table of sides: thousands of examples per second, and tfdp's rate over the side's.

    Args:
      batch_size: The number of examples of a batch.
      results: For each case `what`, `shuffled`, `examples`, and by side the `seconds` of each
        round.
    """
    table = Table(
        title=f"Thousands of examples per second, batches of {batch_size}",
        caption="ratio: tfdp's median / the side's; pairs: median of the rounds' ratios",
    )
    for column in ("examples", "order", "side", "1,000/s", "range", "ratio", "pairs"):
        left = column in ("examples", "order", "side")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for result in results:
        ours = result["seconds"][TFDP]
        for side, seconds in result["seconds"].items():
            rates = spread([result["examples"] / value / 1e3 for value in seconds])
            # The ratio is of seconds: above 1 tfdp is the faster.
            against = None if side == TFDP else ratio(seconds, ours)
            table.add_row(
                result["what"],
                _order(result["shuffled"]),
                side,
                f"{rates.median:.1f}",
                f"{rates.minimum:.1f}-{rates.maximum:.1f}",
                "" if against is None else f"{against.of_medians:.2f}",
                "" if against is None else f"{against.median_of_pairs:.2f}",
            )
        table.add_section()
    return table


def _cases(options: DataOptions, folder: str) -> Iterator[Case]:
    data = load("fashion_mnist")
    images, labels = (part[: options.examples] for part in (data.train_images, data.train_labels))
    if "arrays" in options.sources:
        yield from array_cases(images, labels, options.batch_size)
    if "images" in options.sources:
        count, path = options.image_files, os.path.join(folder, "images")
        os.mkdir(path)
        write_images(path, data.train_images[:count], data.train_labels[:count], options.image_size)
        yield from image_cases(path, options.batch_size)
    if "records" in options.sources:
        path = os.path.join(folder, "train.tfrecord")
        write_records(path, images, labels)
        yield from record_cases(path, options.batch_size)


def _figures(
    options: DataOptions, results: Sequence[dict[str, Any]], folder: str
) -> dict[str, Any]:
    """Returns by name the figures in which no sides are compared."""
    figures: dict[str, Any] = {}
    if "arrays" in options.sources:
        in_order, shuffled = (
            result["seconds"][TFDP] for result in results if result["what"] == "arrays"
        )
        slower = ratio(in_order, shuffled)
        assert slower is not None
        figures["shuffled_to_in_order"] = slower.median_of_pairs
        figures["restore_seconds"] = measure.restore_seconds(options.batch_size, options.rounds)
    if "records" in options.sources:
        figures["fractions_read"] = measure.fractions_read(folder)
    return figures


def _figures_table(figures: dict[str, Any]) -> Table:
    table = Table("tfdp.data.pipeline", "", show_header=False)
    if "shuffled_to_in_order" in figures:
        table.add_row(
            "arrays: examples per second, shuffled over all to in order",
            f"{figures['shuffled_to_in_order']:.2f}",
        )
        table.add_row(
            f"from `restore` at step {measure.RESTORED_STEP:,} to the first batch",
            f"{figures['restore_seconds']:.3f} s",
        )
    if "fractions_read" in figures:
        parts = ", ".join(f"{fraction:.3f}" for fraction in figures["fractions_read"])
        table.add_row("of one TFRecord file each of 2 workers reads", parts)
    return table


def _order(shuffled: bool) -> str:
    return "shuffled" if shuffled else "in order"
