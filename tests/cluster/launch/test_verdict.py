"""The failure that the others follow from, its last error, and the launcher's last lines."""

import itertools
import signal
import subprocess
import sys

import pytest

from tfdp.cluster.launch.rank_process import STOPPED
from tfdp.cluster.launch.rank_start import RankGroup
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.verdict import Failure, Outcome, first_failure, last_error, verdict

LOST = 3  # the rank that the others have lost


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([(0, 1, 5.0, None), (1, 1, 4.0, None)], 1),  # the first in time
        ([(0, 1, 4.0, None), (1, -11, 4.5, None)], 1),  # a signal within the second
        ([(0, 1, 4.0, None), (1, -11, 5.5, None)], 0),  # a signal later
        ([(0, 1, 4.0, None), (1, -6, 4.5, None)], 0),  # an abort
        ([(0, 1, 4.0, LOST), (1, 1, 4.5, None)], 1),
        ([(0, -6, 4.0, LOST), (1, 1, 4.5, None)], 1),
        ([(0, 1, 4.0, LOST), (1, 1, 4.1, LOST)], 0),
        ([(0, 1, 4.0, LOST), (LOST, 1, 4.1, LOST)], LOST),  # it was told what the others say
        ([(0, 1, 4.0, LOST), (1, -9, 6.5, None)], 1),  # a cause that took long to end
    ],
)
def test_the_first_failure_is_the_cause(failures, first):
    assert first_failure([Failure(*f, ["A"], lost) for *f, lost in failures]).rank == first


@pytest.mark.parametrize(
    ("failures", "unfinished", "said"),
    [
        # Of two that end by themselves, as a test runner does, each may be the first to be gone.
        ([(0, 1, 4.1, None), (1, 1, 4.0, None)], [], "exit code 1. Rank 0 failed, too. It wrote"),
        ([(0, 1, 4.0, None), (1, -11, 4.5, None)], [], "signal SIGSEGV. Rank 0 failed, too. It"),
        ([(0, 1, 3.9, 1), (1, 1, 4.0, 1)], [], "exit code 1. It wrote"),
        ([(1, 1, 4.0, 0)], [0], "exit code 1: it had lost rank 0. Rank 0 had to be ended. It"),
    ],
)
def test_with_the_first_failure_those_are_named_that_have_to_do_with_it(failures, unfinished, said):
    failed = {rank: Failure(rank, *rest, [], lost) for rank, *rest, lost in failures}
    outcome = Outcome(None, False, tuple(failed), tuple(unfinished), absent=())
    group = RankGroup.of_this_host([1, 2], [None] * 2)
    options = RunOptions(processes=2, command=("train.py",))
    _, message = verdict(options, outcome, failed, (), group)
    assert message.startswith(f"rank 1 of 2 failed first, with {said}")


@pytest.mark.parametrize("code", [1, STOPPED, -9])
def test_an_end_that_is_not_well_is_never_without_a_word(code):
    group = RankGroup.of_this_host([1, 2], [None] * 2)
    options = RunOptions(processes=2, command=("train.py",), timeout_seconds=1.0)
    failures = {1: Failure(1, code, 4.0, [])} if code != STOPPED else {}
    for ended in itertools.product([False, True], repeat=7):
        by_signal, timed_out, absent, stopped, resized, hangs, alone = ended
        outcome = Outcome(
            signal=signal.SIGTERM if by_signal else None,
            timed_out=timed_out,
            failed=tuple(failures),
            unfinished=(),
            absent=(0,) * absent,
            stopped=(0,) * stopped,
            resized=resized,
            missed=(1,) * (resized and not stopped),
            hangs="rank 0 of 2 hangs" * hangs,
        )
        found, message = verdict(options, outcome, failures, (0,) * alone, group)
        assert bool(found) == bool(message), (outcome, found, message)


def test_a_signal_becomes_128_more():
    assert Failure(0, -15, 0.0, []).exit_code == 143
    assert Failure(0, 3, 0.0, []).exit_code == 3
    assert Failure(0, -40, 0.0, []).how == "signal number 40"


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


def test_of_tensorflow_s_graph_errors_the_reason_is_shown():
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:",
        "",
        "Detected at node CollectiveReduceV2 defined at (most recent call last):",
        *(f'  File "layer_{i}.py", line 1, in call' for i in range(30)),
        "",
        "Collective ops is aborted by: Rank 2: something.",
        "\t [[{{node CollectiveReduceV2}}]]",
    ]
    assert "Collective ops is aborted by: Rank 2: something." in last_error(lines)


def test_of_an_error_in_converted_code_the_users_is_shown():
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    retval_ = ag__.converted_call(f, (x,), None, fscope)",
        "^^^^^^^^",
        "ValueError: in user code:",
        "",
        '    File "train.py", line 9, in train_step  *',
        "        raise ValueError()",
        "",
        "    ValueError: `x` must be positive;",
        "    received -1.",
    ]
    assert last_error(lines) == "ValueError: `x` must be positive;\nreceived -1."


def test_what_tensorflow_only_logs_is_no_error():
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795249739.743009    5687 port.cc:153] oneDNN custom operations are on.",
        "2026-01-01 10:00:00.123456: W external/x.cc:1] slow",
    ]
    assert last_error(lines) == ""
    assert last_error([*lines, "Killed"]) == "Killed"


def test_a_rank_that_ended_with_0_while_others_waited_for_it_is_the_first():
    error = "RankLostError: it has ended."
    code, said = verdict(
        RunOptions(processes=3, command=("train.py",)),
        Outcome(signal=None, timed_out=False, failed=(0,), unfinished=(2,), absent=()),
        {0: Failure(0, 1, 5.0, [error], lost_rank=1), 2: Failure(2, -15, 6.0, [])},
        without_strategy=(),
        group=RankGroup.of_this_host([1, 2, 3], [None] * 3),
    )
    assert code == 1
    assert said.startswith("rank 1 of 3 ended with exit code 0 before the others were done.")
    assert "Rank 0 failed of that, with exit code 1. Rank 2 had to be ended." in said
    assert said.endswith(error)
