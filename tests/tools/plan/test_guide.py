"""The guide to planning says what the commands print, and the costs that the code has."""

import pathlib
import re
import shlex

from tfdp.tools.cli import main
from tfdp.tools.prediction.cluster_model import ENGINES

GUIDE = (pathlib.Path(__file__).parents[3] / "docs" / "plan" / "README.md").read_text()
COMMANDS = re.findall(r"^    tfdp (plan --parameters .*)$", GUIDE, re.MULTILINE)
ANSWERS = re.findall(r"^    ((?:From \d|All of it|The optimizer).*)$", GUIDE, re.MULTILINE)


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_its_commands_print_its_answers(capsys):
    said = "".join(printed(capsys, *shlex.split(command)) for command in COMMANDS)
    assert len(COMMANDS) == 3 and len(ANSWERS) == 4
    for answer in ANSWERS:
        assert answer in said


def test_without_nccl_the_second_host_gives_what_it_says(capsys):
    words = shlex.split(COMMANDS[1].replace("--engine nccl", ""))
    times = re.search(r"hosts: ([\d.]+) times", printed(capsys, *words))[1]
    assert f"the second host gives {times} times" in " ".join(GUIDE.split())


def test_its_costs_are_those_of_the_code():
    engine, guide = ENGINES["tensorflow"], " ".join(GUIDE.split())
    assert (
        f"{1e3 * engine.operation_seconds:g} ms for an operation, "
        f"{1e3 * engine.step_seconds:g} ms for a step, {engine.rate_share:g} of a link's rate; and "
        f"{1e9 * engine.core_seconds_per_byte:g} ns for a byte" in guide
    )
