"""The command line: what it answers, what it refuses, and what it does not import."""

import importlib.util
import subprocess
import sys

import pytest

import tfdp
from tfdp.tools import cli

HEAVY = ("tensorflow", "keras", "numpy", "rich", "matplotlib", "sklearn", "jinja2")


def refusal(capsys, *arguments):
    """The last line of what the command writes when it refuses with exit code 2."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["bench", "-h"],
        ["doctor", "-h"],
        ["check-gpu", "-h"],
        ["report", "-h"],
        ["plan", "-h"],
    ],
)
def test_help_and_version_import_nothing_heavy(words):
    program = (
        "import sys, tfdp.tools.cli\n"
        f"try: tfdp.tools.cli.main({words})\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == "[]"


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"tfdp {tfdp.__version__}\n"


def test_no_command_is_a_usage_error(capsys):
    assert "COMMAND" in refusal(capsys)


@pytest.mark.parametrize(
    ("words", "received", "remedy"),
    [
        (["bench", "--processes", "1"], "received 1;", "do `--processes 2`"),
        (["report", "logs", "--output", "x.jpg"], "received 'x.jpg'", "do `--output x.html`"),
        (["bench", "--output", "no/where/x.png"], "'no/where/x.png'", "do `mkdir -p no/where`"),
    ],
)
def test_a_refusal_says_what_was_received_and_what_to_do(capsys, words, received, remedy):
    message = refusal(capsys, *words)
    assert "must" in message
    assert received in message
    assert remedy in message


def test_a_missing_tensorflow_is_answered_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tfdp[cpu]'" in refusal(capsys, "bench")
