"""The launcher's exit code, and its last lines."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Mapping, Sequence

from tfdp.cluster.run_status import ranks_without_strategy
from tfdp.launch.failures import Failure, first_failure, last_error, signal_name
from tfdp.launch.logs import log_path
from tfdp.launch.run_command import RunOptions
from tfdp.launch.supervision import Outcome

TIMED_OUT = 124  # as `timeout` of the GNU tools


def verdict(
    options: RunOptions,
    outcome: Outcome,
    failures: Mapping[int, Failure],
    status_folder: str,
    configs: Sequence[str],
) -> tuple[int, str]:
    """The exit code, and what to say about it.

    Args:
        options: what was asked for.
        outcome: how the run ended.
        failures: of every rank that did not end with 0, also of those that were made to end.
        status_folder: where the ranks' strategies left word.
        configs: the `TF_CONFIG` of each rank.
    """
    if outcome.timed_out:
        return TIMED_OUT, _timeout_message(options, outcome)
    if outcome.absent and outcome.signal is None:
        return 1, _absent_message(options, outcome)
    if not failures and outcome.signal is None:
        return _trained_alone(options, status_folder, configs)
    if not failures:
        return 0, ""
    if outcome.signal is not None:
        name = signal_name(outcome.signal)
        cause = (
            "The reader of the output has left" if name == "SIGPIPE" else f"{name} was passed on"
        )
        return 128 + outcome.signal, f"{cause}, and all ranks have ended."
    first = first_failure([failures[rank] for rank in outcome.failed])
    ended_well = first.lost_rank
    if ended_well in (*failures, *outcome.unfinished) or ended_well not in range(options.processes):
        ended_well = None
    return first.exit_code, _failure_message(options, first, outcome, ended_well)


def _failure_message(
    options: RunOptions, first: Failure, outcome: Outcome, ended_well: int | None
) -> str:
    if ended_well is None:
        message = f"rank {first.rank} of {options.processes} failed first, with {first.how}."
    else:
        message = (
            f"rank {ended_well} of {options.processes} ended with exit code 0 before the others "
            "were done. Let all ranks come to the end of the script, without `sys.exit(0)`. "
            f"Rank {first.rank} failed of that, with {first.how}."
        )
    if first.how == "signal SIGKILL":
        message += " Linux kills so where memory runs out; `dmesg` tells."
    if len(outcome.unfinished) > 0:
        message += f" {_ranks(outcome.unfinished).capitalize()} had to be ended."
    if options.log_dir is not None:
        message += f" All of its output is in {log_path(options.log_dir, first.rank)}."
    error = last_error(first.said)
    if not error:
        return message + " It wrote no error."
    return f"{message} Its last error:\n{textwrap.indent(error, '  ')}"


def _absent_message(options: RunOptions, outcome: Outcome) -> str:
    return (
        f"every rank must make its strategy; {_ranks(outcome.absent)} of {options.processes} ended "
        "with exit code 0 and made none, and others waited in theirs for that: "
        f"{_ranks(outcome.unfinished)} had to be ended. Let every rank come to "
        "`tfdp.DataParallelStrategy()`, and leave what only one of them shall do to later."
    )


def _timeout_message(options: RunOptions, outcome: Outcome) -> str:
    assert options.timeout_seconds is not None
    seconds = options.timeout_seconds
    return (
        f"`timeout` must cover the whole run; received {seconds:g} s, and after that "
        f"{_ranks(outcome.unfinished)} of {options.processes} still ran: all were ended. "
        f"Do `--timeout {10 * seconds:g}`, or look for what they wait for."
    )


def _trained_alone(
    options: RunOptions, status_folder: str, configs: Sequence[str]
) -> tuple[int, str]:
    """Every rank ended with 0: right, unless they knew nothing of each other."""
    alone = ranks_without_strategy(status_folder, options.processes)
    if options.processes == 1 or not alone:
        return 0, ""
    return 1, (
        f"{options.processes} processes must train as one, through a strategy that reads "
        f"`TF_CONFIG`; received a command whose {_ranks(alone)} made none, so each of these worked "
        f"alone (rank {alone[0]} had `TF_CONFIG={configs[alone[0]]}`). "
        "Make `tfdp.DataParallelStrategy()` in the script, or start it without `tfdp run`: "
        f"`{_single_command(options.command)}`."
    )


def _single_command(command: Sequence[str]) -> str:
    python = ["python"] if command[0].endswith(".py") else []
    return shlex.join([*python, *(os.fspath(word) for word in command)])


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words.

    Example:
        >>> _ranks([3]), _ranks([0, 2])
        ('rank 3', 'ranks 0, 2')
    """
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
