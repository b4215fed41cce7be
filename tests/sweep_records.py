"""Finished runs that nobody trained."""

from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.sweep import needed

VERSIONS = {"tfdp": "0", "tensorflow": "0", "keras": "0", "numpy": "0"}


def outcome(accuracy: float | None) -> Outcome:
    """Of a run that ended with that accuracy on both splits, or diverged in its second epoch."""
    value = accuracy or 0.0
    return Outcome(
        val_accuracy=value,
        test_accuracy=value,
        test_loss=None if accuracy is None else 1 - value,
        diverged=accuracy is None,
        loss_by_epoch=(2.0,) if accuracy is None else (2.0, 1.0),
        val_accuracy_by_epoch=(0.1,) if accuracy is None else (0.1, value),
        updates=10,
        seconds=1.5,
        versions=VERSIONS,
    )


def finish(options, accuracy_of, pick=lambda runs: runs[0], most=1000):
    """Runs a sweep to its end, the next run `pick` of those needed; returns its finished runs."""
    finished: dict[Run, Outcome] = {}
    while runs := needed(options, finished):
        assert len(finished) < most, "does not end"
        run = pick(runs)
        finished[run] = outcome(accuracy_of(run))
    return finished
