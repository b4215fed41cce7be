"""The measurements: epochs of every side in turn, a restart, and what two workers read."""

import math
import os
import statistics
import time
from collections.abc import Sequence

import numpy as np

import tfdp
from benchmarks.data.cases import Case
from benchmarks.data.files import write_large_records

RESTORED_STEP = 10_000

_RECORDS, _RECORD_BYTES = 512, 1 << 16


def seconds_of(case: Case, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """Returns by side the seconds of an epoch in each round, from the call to its last batch.

    The sides take turns. Each reads one epoch before the first round, which traces what is traced
    only once.

    Raises:
      RuntimeError: A side reads another number of batches than the epoch has.
    """
    expected = math.ceil(case.examples / batch_size)
    for side, read in case.sides.items():
        batches = read()
        if batches != expected:
            raise RuntimeError(
                f"{side} must read the {expected} batches of {case.what}; received {batches}."
            )
    seconds: dict[str, list[float]] = {side: [] for side in case.sides}
    for _ in range(rounds):
        for side, read in case.sides.items():
            began = time.perf_counter()
            read()
            seconds[side].append(time.perf_counter() - began)
    return seconds


def restore_seconds(batch_size: int, rounds: int) -> float:
    """Returns the median seconds from `restore` at step 10,000 of a shuffled epoch to a batch.

    Each time is of a pipeline that has not read before, and includes the tracing.
    """
    source = tfdp.data.sources.ArraySource(np.arange(batch_size * (RESTORED_STEP + 1)))
    seconds = []
    for _ in range(rounds):
        pipeline = tfdp.data.pipeline(source, batch_size, seed=0)
        state = {**pipeline.state(), "position": batch_size * RESTORED_STEP}
        began = time.perf_counter()
        pipeline.restore(state)
        next(iter(pipeline))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def fractions_read(folder: str, workers: int = 2) -> Sequence[float]:
    """Returns the fraction of one TFRecord file that each worker reads in a shuffled epoch.

    Args:
      folder: The folder where the file of 512 records of 64 KiB is written.
      workers: The number of workers, with one replica each.
    """
    path = os.path.join(folder, "large.tfrecord")
    write_large_records(path, _RECORDS, _RECORD_BYTES)
    fractions = []
    for rank in range(workers):
        source = tfdp.data.sources.TFRecordSource(path)
        pipeline = tfdp.data.pipeline(source, 16, seed=0)
        for _ in pipeline.for_replicas(workers, range(rank, rank + 1)):
            pass
        fractions.append(source.bytes_read / os.path.getsize(path))
    return fractions
