"""From the fields of a dataclass to a command line: names, types, defaults, limits, errors."""

import argparse
import dataclasses
import math
import pathlib

import pytest

from tfdp.base import command_line
from tfdp.base.command_line import REQUIRED, check, option


@dataclasses.dataclass(frozen=True)
class Options:
    """One option of each kind."""

    log_dir: pathlib.Path = option(REQUIRED, "a word", flags=("LOG_DIR",))
    number: int = option(REQUIRED, "required", flags=("-n", "--number"), at_least=1, example="2")
    rate: float | None = option(None, "a float", above=0, example="0.5")
    sizes: tuple[int, ...] | None = option((1, 2), "(%(default)s)", at_least=1, example="1,2")
    names: tuple[str, ...] = option(("a", "b"), "of some", choices=("a", "b", "c"))
    one_of: str = option("x", "(%(default)s)", choices=("x", "y"))
    others: tuple[pathlib.Path, ...] = option((), "words", nargs="+", action="extend")
    step_seconds: float = option(1.5, "(%(default)g)", at_least=0, at_most=10)
    dry_run: bool = option(False, "a flag")
    output: pathlib.Path = option(pathlib.Path("x.png"), "a file", writes=(".png",))
    seed: int = 7

    def __post_init__(self):
        check(self)


def parse(*words):
    parser = argparse.ArgumentParser(prog="it")
    command_line.add_command(
        parser.add_subparsers(), "do", Options, lambda options, parser: options
    )
    parsed = parser.parse_args(["do", *words])
    return parsed.handler(parsed)


def test_what_is_not_given_is_the_field_s_default():
    assert parse("logs", "-n", "3") == Options(pathlib.Path("logs"), 3)


def test_every_kind_is_parsed_as_its_type():
    words = "logs --number 3 --rate 2 --sizes 4,5 --names c,a --one-of y --others p q --others r "
    words += "--step 3 --dry-run --output y.PNG"
    assert parse(*words.split()) == Options(
        pathlib.Path("logs"),
        3,
        rate=2.0,
        sizes=(4, 5),
        names=("c", "a"),
        one_of="y",
        others=tuple(map(pathlib.Path, "pqr")),
        step_seconds=3.0,
        dry_run=True,
        output=pathlib.Path("y.PNG"),
    )


def test_all_means_every_choice():
    assert parse("logs", "-n", "1", "--names", "all").names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-n 0", "`-n` must be at least 1; received 0; do `-n 2`."),
        ("-n two", "`-n` must be a whole number; received 'two'; do `-n 2`."),
        ("--rate nan", "`rate` must be above 0; received nan; do `--rate 0.5`, or leave it out."),
        ("--rate x", "`rate` must be a number; received 'x'; do `--rate 0.5`, or leave it out."),
        ("--sizes 1,x", "`sizes` must be numbers with commas between; received '1,x'; do `--sizes"),
        ("--sizes 1,0", "`sizes` must be at least 1; received '1,0'; do `--sizes 1,2`."),
        ("--names d", "`names` must be some of a, b, c, or all; received 'd'; do `--names all`."),
        ("--one-of z", "`one-of` must be one of x, y; received 'z'; do `--one-of x`."),
        ("--step 11", "`step` must be from 0 to 10; received 11; do `--step 1.5`."),
        ("--output x.jpg", "that ends in .png; received 'x.jpg'; do `--output x.png`."),
        ("--output no/x.png", "in a directory that exists; received 'no/x.png'; do `mkdir -p no`."),
        ("--seed 3", "unrecognized arguments: --seed 3"),
    ],
)
def test_a_refusal_names_the_option_what_must_hold_and_the_fix(capsys, words, message):
    with pytest.raises(SystemExit) as exit_:
        parse("logs", "-n", "1", *words.split())
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"a directory; do `--output .*/tfdp.png`"):
        Options(tmp_path, 1, output=tmp_path)


def test_programs_are_refused_alike():
    with pytest.raises(ValueError, match=r"`step` must be from 0 to 10; received nan"):
        Options(pathlib.Path("logs"), 1, step_seconds=math.nan)


def test_help_shows_names_defaults_and_choices(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "-n NUMBER" in text and "--one-of {x,y}" in text and "(1.5)" in text
    assert "--step STEP" in text and "seed" not in text
