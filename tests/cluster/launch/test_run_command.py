"""The words after `tfdp run`: which are the launcher's, which the command's, which refused."""

import subprocess
import sys

import pytest

from tfdp.cluster import launch
from tfdp.tools import cli


@pytest.fixture
def received(monkeypatch):
    """The options of runs that are not started."""
    options = []
    monkeypatch.setattr(launch, "run", lambda given: options.append(given) or 0)
    return options


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py"], ("train.py",)),
        (["train.py", "-n", "3", "--timeout", "x"], ("train.py", "-n", "3", "--timeout", "x")),
        (["--", "train.py", "--d", "--help"], ("train.py", "--d", "--help")),
        (["train.py", "--", "--version"], ("train.py", "--", "--version")),
        (["--", "-odd", "x"], ("-odd", "x")),
    ],
)
def test_options_after_the_command_are_its_own(received, words, command):
    assert cli.main(["run", "-n", "2", "--timeout", "9", *words]) == 0
    (options,) = received
    assert (options.command, options.processes) == (command, 2)
    assert options.timeout_seconds == 9.0


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["-n", "0", "train.py"], "received 0;", "do `-n 2`"),
        (["-n", "-1", "train.py"], "received -1;", "do `-n 2`"),
        (["-n", "2"], "received none;", "do `tfdp run -n 2 train.py`"),
        (["-n", "2", "--"], "received none;", "do `tfdp run -n 2 train.py`"),
        (["-n", "2", "--engine", "gloo", "x"], "received 'gloo';", "`--engine auto`"),
        (["-n", "2", "--timeout", "0", "x"], "received 0;", "`--timeout 3600`"),
        (["-n", "2", "--timeout", "nan", "x"], "received nan;", "`--timeout 3600`"),
        (
            ["-n", "2", "--devices-per-process", "0", "x"],
            "received 0;",
            "`--devices-per-process 1`",
        ),
        (["-n", "2", "--log-dir", __file__, "x"], "test_run_command.py", "-logs`"),
        (["-n", "2", "--log-dir", "", "x"], "received '',", "`--log-dir .`"),
    ],
)
def test_a_refusal_says_what_was_received_and_what_to_do(capsys, received, words, said, remedy):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["run", *words])
    assert exit_.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "must" in message
    assert said in message
    assert remedy in message
    assert not received


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["-n", "999999"], "`-n` must not exceed", "or start fewer"),
        (["-n", "1", "--log-dir", "/proc/nope"], "`log-dir` must be", "do `--log-dir logs`"),
        (["-n", "1", "--log-dir", __file__ + "/logs"], "Not a directory", "do `--log-dir logs`"),
    ],
)
def test_what_the_system_does_not_give_is_named_with_its_option(capfd, words, said, remedy):
    assert cli.main(["run", *words, "true"]) == 1
    (message,) = capfd.readouterr().err.splitlines()
    assert words[-1] in message
    assert said in message
    assert remedy in message


def test_without_mpi_nothing_is_started_and_the_fix_is_said(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "train.py").touch()
    assert cli.main(["run", "-n", "2", "--engine", "mpi", str(tmp_path / "train.py")]) == 1
    said = capfd.readouterr()
    assert said.err.startswith("tfdp run: error: `mpiexec` must be beside Python or on the PATH")
    assert said.out == ""


def test_the_number_of_ranks_is_required(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "train.py"])
    assert "-n" in capsys.readouterr().err


def test_a_script_that_is_not_executable_is_told_how_to_become_so(tmp_path, capsys):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    assert cli.main(["run", "-n", "2", str(script)]) == 126
    assert f"do `chmod +x {script}`" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    program = (
        "import sys, tfdp.tools.cli\n"
        "try: tfdp.tools.cli.main(['run', '--help'])\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == "[]"
