"""The table of what programs send beyond gradients, as `benchmarks gathers` prints it."""

import io

import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks import gathers
from benchmarks.gathers import GathersOptions, Sent

FOUND = [
    Sent("one", "gather", "Sort is computed on the gathered batch", 512, False),
    Sent("two", "gather", "Sort is computed on the gathered batch", 2048, False),
    Sent("two", "sum", "Mean", 4, False),
    Sent("two", "gather", "Sort is computed on the gathered batch", 8, True),
    Sent("three", "gather", "Split is computed on the gathered batch", None, False),
]


def test_a_kind_of_operation_is_a_row_and_the_largest_is_the_first():
    head, _, *rows, _, last = gathers.table(FOUND, 5, 25)
    assert head == "| bytes | what | asked for by | programs |"
    assert rows == [
        "| 2.05 kB | gather | Sort is computed on the gathered batch | two and 1 other |",
        "| 8 B, each round | gather | Sort is computed on the gathered batch | two |",
        "| 4 B | sum | Mean | two |",
        "| the step knows | gather | Split is computed on the gathered batch | three |",
    ]
    assert last == "Of 5 programs 3 gather something; 0 smaller rows left out."


def test_smaller_rows_are_counted():
    *_, last = gathers.table(FOUND, 5, 1)
    assert last.endswith("3 smaller rows left out.")


def normalized(strategy):
    """Sorts the batch, and trains by its mean, whose gradient is the only sum."""
    with strategy.scope():
        weight = tf.Variable(2.0)

    @strategy.partitioned
    def step(x):
        ranks = tf.argsort(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * x)
        weight.assign_sub(tape.gradient(loss, weight))
        return ranks

    step(tf.range(6.0))


def fails(strategy):
    raise ValueError("no such data")


@pytest.mark.slow
def test_what_is_sent_besides_gradients_is_found_and_what_fails_is_named(monkeypatch):
    from benchmarks import gathers_programs

    run = {"sorted": normalized, "broken": fails}
    monkeypatch.setattr(gathers_programs, "programs", lambda: run)
    console = Console(width=300, file=io.StringIO())
    code = gathers.run(GathersOptions(), console)
    printed = console.file.getvalue()
    assert code == 1
    assert "Not run: broken: ValueError: no such data" in printed
    rows = [line for line in printed.splitlines() if line.startswith("| 128 B | gather | TopKV2")]
    assert len(rows) == 1  # four bytes of each of 32 examples
    assert "Of 1 program 1 gather something" in printed
    assert "| sum |" not in printed
