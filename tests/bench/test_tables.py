"""Tables and pictures from known times."""

import io

import pytest
from rich.console import Console

from tfdp.bench.tables import Bound, Measured, draw, summary_table, times

MEASURED = [
    Measured("ring", 25_000_000, (2.0, 1.6), True),
    Measured("tree", 25_000_000, (1.0,), True),
    Measured("ring", 25_000_000, (1.8,), True),
    Measured("ring", 1000, (0.002,), True),
]


def test_the_bound_is_what_one_link_takes():
    """25 MB over links of 24 MB/s: four hosts send 1.5 times the bytes each, two hosts once."""
    assert Bound(24e6, 4, 4).seconds(25_000_000) == pytest.approx(1.5625)
    assert Bound(24e6, 2, 4).seconds(25_000_000) == pytest.approx(1.0417, abs=1e-4)


def test_rounds_are_put_together():
    assert times(MEASURED, 25_000_000) == {"ring": [1.8, 2.0, 1.6, 1.8], "tree": [1.0, 1.0]}


def test_the_table_has_the_fastest_first_with_its_bandwidths_and_ratio():
    console = Console(file=io.StringIO(), width=120)
    console.print(summary_table(MEASURED, 25_000_000, Bound(25e6, 2, 4)))
    rows = [line.split() for line in console.file.getvalue().splitlines() if "MB/s" in line]
    assert [row[1] for row in rows] == ["tree", "ring"]
    text = " ".join(rows[1])
    assert "1.80 s │ 1.60 s - 2.00 s │ 13.9 MB/s │ 20.8 MB/s │ 1.80" in text


def test_a_picture_is_drawn(tmp_path):
    path = tmp_path / "x.png"
    draw(MEASURED, Bound(25e6, 2, 4), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_links_are_described():
    assert Bound(24e6, 2, 4).describe("200mbit") == (
        "4 ranks on 2 hosts. A link carries 192 Mbit/s of 200mbit."
    )
