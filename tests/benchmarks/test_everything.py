"""`benchmarks all`: what it runs, goes past and goes on from; and the README that lists it."""

import pathlib
import re
import shlex
import types

import pytest

from benchmarks import __main__, everything
from tfdp.tools import cli
from tutorials import demo

README = pathlib.Path(everything.__file__).with_name("README.md")


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Replaces the commands: the second fails until there is a file `mended`."""
    found = {
        "one": "python -c \"print('first')\"",
        "two": f"python -c \"open('{tmp_path / 'mended'}')\"",
        "three": "python -c \"print('{folder}')\"",
    }
    monkeypatch.setattr(everything, "COMMANDS", found)
    return found


def written(folder):
    return {path.name: path.read_text().splitlines() for path in folder.iterdir()}


def test_it_goes_on_past_what_fails_and_tries_only_that_again(commands, tmp_path, capsys):
    options = types.SimpleNamespace(output=tmp_path / "tables", only=tuple(commands))
    assert everything.run(options) == 1
    said = capsys.readouterr()
    assert "first" in said.out and "two failed: see" in said.err
    files = written(options.output)
    assert sorted(files) == ["one.txt", "three.txt", "two.failed.txt"]
    assert files["three.txt"][1] == str(options.output)
    assert "FileNotFoundError" in files["two.failed.txt"][-1]

    (tmp_path / "mended").touch()
    assert everything.run(options) == 0
    assert f"one: is in {options.output / 'one.txt'}" in capsys.readouterr().out
    assert sorted(written(options.output)) == ["one.txt", "three.txt", "two.txt"]


def test_a_name_that_is_not_there_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        __main__.main(["all", "--output", str(tmp_path / "x"), "--only", "fit,speed"])
    assert "received 'fit,speed'; do `--only all`" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", everything.COMMANDS)
def test_every_command_is_one(name, tmp_path):
    words = shlex.split(everything.COMMANDS[name].format(folder=tmp_path))
    match words[:3]:
        case ["python", "-m", "benchmarks"]:
            parser, words = __main__.build_parser(), words[3:]
        case ["python", "-m", "tutorials.demo"]:
            assert demo.build_parser().parse_args(words[3:]).output == tmp_path / "demo.png"
            return
        case ["tfdp", *_]:
            parser, words = cli.build_parser(), words[1:]
        case _:
            assert pathlib.Path(words[1]).exists()
            return
    # What the handler makes of the words is checked by the options.
    assert parser.parse_args(words).handler


def test_the_readme_names_every_command_and_no_other():
    rows = [line for line in README.read_text().splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(everything.COMMANDS)
