"""The failure that the others follow from, and what a rank's last error is."""

import subprocess
import sys

import pytest

from tfdp.errors import LOST_RANK_MARK
from tfdp.launch.failures import Failure, first_failure, last_error

CONSEQUENCE = f"RuntimeError: tfdp: {LOST_RANK_MARK} 3"


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([(0, 1, 5.0, "A"), (1, 1, 4.0, "B")], 1),  # the first in time
        ([(0, 1, 4.0, "A"), (1, -11, 4.5, "")], 1),  # a signal within the second
        ([(0, 1, 4.0, "A"), (1, -11, 5.5, "")], 0),  # a signal later
        ([(0, 1, 4.0, "A"), (1, -6, 4.5, "F0000 coordination service")], 0),  # an abort
        ([(0, 1, 4.0, CONSEQUENCE), (1, 1, 4.5, "B")], 1),
        ([(0, -6, 4.0, CONSEQUENCE), (1, 1, 4.5, "B")], 1),
        ([(0, 1, 4.0, CONSEQUENCE), (1, 1, 4.1, CONSEQUENCE)], 0),
        ([(0, 1, 4.0, CONSEQUENCE), (1, -9, 6.5, "")], 1),  # a cause that took long to end
    ],
)
def test_the_first_failure_is_the_cause(failures, first):
    assert first_failure([Failure(*failure) for failure in failures]).rank == first


def test_a_signal_becomes_128_more():
    assert Failure(0, -15, 0.0, "").exit_code == 143
    assert Failure(0, 3, 0.0, "").exit_code == 3
    assert Failure(0, -40, 0.0, "").how == "signal number 40"


def stderr_of(program):
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return child.stderr.splitlines()


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise ValueError('one\\ntwo')", "ValueError: one\ntwo"),
        ("try: 1/0\nexcept ZeroDivisionError as e: raise OSError('no') from e", "OSError: no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise SystemExit('stopped')", "stopped"),
        ("pass", ""),
    ],
)
def test_the_last_error_is_the_last_traceback_s(program, error):
    assert last_error(stderr_of(program)) == error


def test_an_error_without_a_traceback_is_the_last_lines():
    assert last_error(stderr_of("x = = 1")).splitlines()[-1] == "SyntaxError: invalid syntax"
    group = "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])"
    assert "TypeError: b" in last_error(stderr_of(group))


def test_of_a_long_error_both_ends_are_kept():
    program = "raise ValueError('\\n'.join(f'line {i}' for i in range(100)))"
    shown = last_error(stderr_of(program)).splitlines()
    assert shown[0] == "ValueError: line 0"
    assert "..." in shown
    assert shown[-1] == "line 99"
