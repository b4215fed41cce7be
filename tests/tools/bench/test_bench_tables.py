"""Tables and pictures from known times."""

import io
import json
import re

import pytest
from rich.console import Console

from tfdp.tools.bench.bench_options import TOPOLOGIES
from tfdp.tools.bench.bench_tables import Bound, Measured, draw, summary_table, times, write_results

MEASURED = [
    Measured("ring", 25_000_000, (2.0, 1.6), True),
    Measured("tree", 25_000_000, (1.0,), True),
    Measured("ring", 25_000_000, (1.8,), True),
    Measured("ring", 1000, (0.002,), True),
]


def printed(table):
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()


def test_between_hosts_the_bytes_over_a_link_are_shown_and_on_one_host_not():
    bound = Bound(24e6, 2, 4)
    counts = (49_000_000, 51_000_000)
    between = [Measured("ring", 25_000_000, (2.0,), True, (count,)) for count in counts]
    lines = printed(summary_table(between, 25_000_000, bound)).splitlines()
    (row,) = [line for line in lines if line.strip().startswith("ring")]
    assert row.split()[-1] == "50.0"
    (row,) = [
        line
        for line in printed(summary_table(MEASURED, 1000, bound)).splitlines()
        if line.strip().startswith("ring")
    ]
    assert row.split()[-1] == f"{0.002 / bound.seconds(1000):.2f}"


def test_the_bound_is_what_one_link_takes():
    """25 MB over links of 24 MB/s: four hosts send 1.5 times the bytes each, two hosts once."""
    assert Bound(24e6, 4, 4).seconds(25_000_000) == pytest.approx(1.5625)
    assert Bound(24e6, 2, 4).seconds(25_000_000) == pytest.approx(1.0417, abs=1e-4)


def test_rounds_are_put_together():
    assert times(MEASURED, 25_000_000) == {"ring": [1.8, 2.0, 1.6, 1.8], "tree": [1.0, 1.0]}


def test_the_table_has_the_fastest_first_with_its_bandwidths_and_ratio():
    text = printed(summary_table(MEASURED, 25_000_000, Bound(25e6, 2, 4)))
    rows = [line.split() for line in text.splitlines() if " - " in line]
    assert [row[0] for row in rows] == ["tree", "ring"]
    assert " ".join(rows[1]) == "ring 1.8 s 1.6 - 2 s 13.9 20.8 1.80"
    assert "MB/s" in text


@pytest.mark.parametrize("seconds", [9.994e-4, 1.2e-3, 0.9994, 1.2, 99.94])
def test_the_table_fits_80_columns_and_nothing_is_cut(seconds):
    sides = (*TOPOLOGIES, "stock", "gloo", "mpi4py", "graph")
    measured = [
        Measured(side, 250_000_000, (seconds, seconds / 1.3, seconds / 2), True) for side in sides
    ]
    text = printed(summary_table(measured, 250_000_000, Bound(2.5e9, 8, 64)))
    assert "…" not in text and "..." not in text
    assert max(map(len, text.splitlines())) <= 80
    assert all(re.search(rf"^ *{side} +\d.* - ", text, re.MULTILINE) for side in sides)


@pytest.mark.slow
def test_a_picture_is_drawn(tmp_path):
    path = tmp_path / "x.png"
    draw(MEASURED, Bound(25e6, 2, 4), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_links_are_described():
    assert Bound(24e6, 2, 4, "200mbit").describe() == (
        "4 ranks on 2 hosts. A link carries 192 Mbit/s of 200mbit."
    )


def test_what_is_written_can_be_read(tmp_path):
    path = tmp_path / "raw.json"
    write_results(path, {"rounds": 2}, [{"seconds": 1.5}], [])
    content = json.loads(path.read_text())
    assert (content["options"], content["results"]) == ({"rounds": 2}, [{"seconds": 1.5}])
    assert content["machine"]["cpus"] >= 1
    assert [p.name for p in tmp_path.iterdir()] == ["raw.json"]


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "raw.json"
    path.write_text("old")
    circular: list = []
    circular.append(circular)
    with pytest.raises(ValueError, match=r"(?i)circular"):
        write_results(path, {}, circular, [])
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["raw.json"]
