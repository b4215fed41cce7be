"""Where a step's time went: from a clock around it, and from what its graph recorded."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from tfdp.recording import Reading, Recorder


class StepClock:
    """Times executions of the train function, one after the other.

    Args:
      recorder: What the function writes to; None: nothing is known of its inside.
      pipeline: A `tfdp.data.Pipeline` whose waits are counted; None: those in the graph are.
      steps_per_execution: Of Keras.

    >>> clock = StepClock(None, None, steps_per_execution=2)
    >>> clock.start()
    >>> clock.begin(sample=False)
    >>> sorted(clock.end())
    ['seconds', 'steps']
    """

    def __init__(self, recorder: Recorder | None, pipeline: Any, steps_per_execution: int) -> None:
        self._recorder = recorder
        self._pipeline = pipeline
        self._steps_per_execution = steps_per_execution
        self._knows_input = pipeline is not None or steps_per_execution == 1

    def start(self) -> None:
        """The first step's time counts from here."""
        self._last = time.perf_counter()
        self._waited = self._waited_now()
        if self._recorder is not None:
            self._reading = self._recorder.read()

    def begin(self, sample: bool) -> None:
        """Just before an execution. A sample lasts until gradients have been summed."""
        if self._recorder is not None and sample:
            self._recorder.sample(True)
        self._began = time.perf_counter()

    def end(self) -> dict[str, Any]:
        """Just after it: the numbers of its line."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        inside = now - self._began
        if self._recorder is None:
            return {"steps": self._steps_per_execution, "seconds": round(seconds, 6)}
        reading = self._recorder.read()
        passed, self._reading = reading - self._reading, reading
        line = self._always(passed, seconds)
        if self._recorder.samples:
            line |= self._sample(passed, inside, line.get("input_seconds", 0.0))
        return line

    def _always(self, passed: Reading, seconds: float) -> dict[str, Any]:
        assert self._recorder is not None
        examples = round(float(passed.of("examples")[0]))
        line: dict[str, Any] = {
            "steps": round(float(passed.of("steps")[0])),
            "examples": examples,
            "seconds": round(seconds, 6),
            "examples_per_second": round(examples / seconds, 3) if seconds else 0.0,
        }
        if self._knows_input:
            waited = self._waited_now()
            own = float(passed.of("input_seconds")[0])
            spent = own if self._pipeline is None else waited - self._waited
            line["input_seconds"] = round(min(max(spent, 0.0), seconds), 6)
            self._waited = waited
        line["bytes_sent"] = round(float(passed.of("bytes_sent").sum()))
        return line

    def _sample(self, passed: Reading, inside: float, waited: float) -> dict[str, Any]:
        assert self._recorder is not None
        if not passed.of("updates").any():
            return {}  # a window of accumulation is open: nothing was sent
        self._recorder.sample(False)
        sample: dict[str, Any] = {}
        communication = max(0.0, float(passed.of("communication_seconds").min()))
        meeting = max(0.0, float(passed.of("meeting_seconds").min()))
        sample["communication_seconds"] = round(communication, 6)
        sample["meeting_seconds"] = round(meeting, 6)
        if passed.of("bytes_sent").any():
            wait = max(0.0, float(passed.of("first_bucket_wait_seconds").min()))
            sample["first_bucket_wait_seconds"] = round(wait, 6)
        compute = inside - waited - communication - meeting
        sample["compute_seconds"] = round(max(0.0, compute), 6)
        norms = float(passed.of("norms")[0])
        if norms:
            sample["gradient_norm"] = math.sqrt(float(passed.of("square_norms")[0]) / norms)
        ratios = self._recorder.read_trust_ratios()
        ratios = ratios[~np.isnan(ratios)]
        if ratios.size:
            sample["trust_ratios"] = {
                "min": float(ratios.min()),
                "median": float(np.median(ratios)),
                "max": float(ratios.max()),
            }
        return sample

    def _waited_now(self) -> float:
        return 0.0 if self._pipeline is None else self._pipeline.progress.waited_seconds
