"""What the demo accepts, beyond what `tests/tools/test_cli.py` refuses."""

import pathlib

import pytest

from tfdp.tools.demo.demo_options import DemoOptions


def test_the_replicas_are_those_of_all_processes_together():
    assert DemoOptions(replicas=6, processes=3).replicas_per_process == 2
    assert DemoOptions(replicas=6).replicas_per_process == 6


def test_replicas_that_the_processes_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"5 replicas for 2 processes; do `--replicas 6`"):
        DemoOptions(replicas=5, processes=2)


def test_a_relative_output_is_allowed():
    assert DemoOptions(output=pathlib.Path("x.PNG")).output.name == "x.PNG"
