"""What `tfdp bench` can be asked for."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.tools.bench.bench_options import BenchOptions, parse_size
from tfdp.tools.cli import main


@given(st.integers(4, 10**12))
def test_a_number_of_bytes_is_itself(size):
    assert parse_size(str(size)) == parse_size(f"{size}B") == size


@pytest.mark.parametrize(
    ("text", "size"), [("1KB", 1000), ("1.5 MB", 1_500_000), ("2kib", 2048), ("1GiB", 2**30)]
)
def test_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "-1KB", "3", "1 parsec", "1e3"])
def test_no_size_is_refused_with_the_fix(text):
    with pytest.raises(ValueError, match=r"do `--sizes 1KB,1MB,100MB`"):
        parse_size(text)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"sides": ("rign",)}, r"`topology` must be some of .*, or all; received 'rign'"),
        ({"processes": 1}, r"`processes` must be at least 2; received 1"),
        ({"rounds": 0}, r"do `--rounds 3`"),
        ({"timeout_seconds": float("nan")}, r"`timeout` must be above 0; received nan"),
        ({"output": pathlib.Path("absent/x.png")}, r"do `mkdir -p absent`"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(choices, message):
    with pytest.raises(ValueError, match=message):
        BenchOptions(**choices)


def test_the_topologies_of_an_engine_share_processes():
    own = ("ring", "tree")
    runs = BenchOptions(sides=own).runs
    assert [(run.engine, run.sides) for run in runs] == [("tensorflow", own), ("mpi", own)]
    assert [run.engine for run in BenchOptions(sides=own, engines=("mpi",)).runs] == ["mpi"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--sizes", "big"], "do `--sizes 1KB,1MB,100MB`"),
        (["--topology", "rign"], "do `--topology all`"),
        (["--engine", "gloo"], "do `--engine"),
    ],
)
def test_the_command_line_refuses_likewise(words, fix, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *words])
    assert exit_.value.code == 2
    assert fix in capsys.readouterr().err
