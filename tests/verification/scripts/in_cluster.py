"""Run by `test_across_processes.py` on every rank: what `verify` says must be the same on all."""

import pathlib
import sys

import tfdp

strategy = tfdp.DataParallelStrategy(timeout_seconds=60)  # before TensorFlow is used

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # the folder of the tests

from verification import faults, programs  # noqa: E402

FAULTS = ("state", "loss", "update")

said = []


def say(report):
    said.append(repr(report))
    return report


say(tfdp.verify(programs.dropping, faults.batches((7, 8, 1)), strategy=strategy)).check()
say(tfdp.verify(programs.accumulating, faults.batches())).check()
for name in FAULTS:
    fault = faults.FAULTS[name]
    report = say(tfdp.verify(fault.build, faults.batches(), steps=2))
    assert not report and report.replicas == strategy.num_replicas_in_sync, report
    assert report.parted[0].part == fault.part and fault.cause in report.cause, report
    assert report.reason, report

strategy.extended.processes.compare("what `verify` says", {str(i): s for i, s in enumerate(said)})
try:
    tfdp.verify(faults.dense, faults.batches((5 + strategy.rank,)))
except tfdp.errors.RankMismatchError as error:
    assert "the batches of `tfdp.verify`" in str(error)
else:
    sys.exit("batches that differ between ranks must be refused")
print(f"rank {strategy.rank}: {len(said)} reports")
