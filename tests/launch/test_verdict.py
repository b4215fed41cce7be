"""The launcher's last lines name the rank that the others failed of."""

from tfdp.errors import LOST_RANK_MARK
from tfdp.launch.failures import Failure
from tfdp.launch.run_command import RunOptions
from tfdp.launch.supervision import Outcome
from tfdp.launch.verdict import verdict


def test_a_rank_that_ended_with_0_while_others_waited_for_it_is_the_first():
    error = f"RankLostError: Rank 0: {LOST_RANK_MARK} 1: it has ended."
    code, said = verdict(
        RunOptions(processes=3, command=("train.py",)),
        Outcome(signal=None, timed_out=False, failed=(0,), unfinished=(2,), absent=()),
        {0: Failure(0, 1, 5.0, [error]), 2: Failure(2, -15, 6.0, [])},
        status_folder="",
        configs=[],
    )
    assert code == 1
    assert said.startswith("rank 1 of 3 ended with exit code 0 before the others were done.")
    assert "Rank 0 failed of that, with exit code 1. Rank 2 had to be ended." in said
    assert said.endswith(error)
