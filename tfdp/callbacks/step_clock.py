"""The parts of a step's time, from a clock around it and from what its program tells."""

import math
import time
from typing import Any

import numpy as np

from tfdp.base.recording import Reading, Recorder
from tfdp.communication.replicas import CompilesPrograms


class StepClock:
    """Times executions of the train function, one after the other.

    Args:
      recorder: The recorder that the function writes to; None: nothing is known of its inside.
      pipeline: A `tfdp.data.Pipeline` whose waits are counted; None: the waits in the graph are.
      model: The model that is trained.

    >>> import types
    >>> model = types.SimpleNamespace(steps_per_execution=2, run_eagerly=False)
    >>> clock = StepClock(None, None, model)
    >>> clock.start()
    >>> clock.begin(sample=False)
    >>> sorted(clock.end())
    ['seconds']
    """

    def __init__(self, recorder: Recorder | None, pipeline: Any, model: Any) -> None:
        self._recorder = recorder
        self._pipeline = pipeline
        # Eager replicas take turns, and nobody watches what they send.
        self._knows_inside = not model.run_eagerly
        in_graph = self._knows_inside and model.steps_per_execution == 1
        self._knows_input = pipeline is not None or in_graph
        self._asks = False

    def start(self) -> None:
        """Starts the clock of the first step."""
        self._last = time.perf_counter()
        self._waited = self._waited_now()
        if self._recorder is not None:
            self._reading = self._recorder.read()

    def begin(self, sample: bool) -> None:
        """Begins an execution. A sample lasts until gradients have been summed."""
        if self._recorder is not None and sample:
            self._asks = True
            self._recorder.sample(self, True)
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Ends, after the last step, a sample that still waits for gradients."""
        if self._recorder is not None:
            self._recorder.sample(self, False)

    def end(self) -> dict[str, Any]:
        """Ends an execution, and returns its line. A sample has `compute_seconds` or a norm."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        inside = now - self._began
        if self._recorder is None:
            return {"seconds": round(seconds, 6)}
        reading = self._recorder.read()
        passed, self._reading = reading - self._reading, reading
        line = self._always(passed, seconds)
        if self._asks:
            line |= self._sample(passed, inside, line.get("input_seconds", 0.0))
        return line

    def _always(self, passed: Reading, seconds: float) -> dict[str, Any]:
        assert self._recorder is not None
        examples = round(float(passed.of("examples")[0]))
        line = _counts(round(float(passed.of("steps")[0])), examples, seconds)
        if self._knows_input:
            waited = self._waited_now()
            own = float(passed.of("input_seconds").max())
            spent = own if self._pipeline is None else waited - self._waited
            line["input_seconds"] = round(min(max(spent, 0.0), seconds), 6)
            self._waited = waited
        if self._knows_inside:
            line["bytes_sent"] = round(float(passed.of("bytes_sent").sum()))
            # All replicas take part in all of them.
            line["collectives"] = {
                kind: round(float(passed.of(kind)[0]))
                for kind in ("meetings", "buckets", "endings")
            }
        return line

    def _sample(self, passed: Reading, inside: float, waited: float) -> dict[str, Any]:
        assert self._recorder is not None
        if not passed.of("updates").any():
            return {}  # a window of accumulation is open: nothing was sent
        self._asks = False
        self._recorder.sample(self, False)
        times = self._times(passed, inside - waited) if self._knows_inside else {}
        return times | self._norms(passed)

    def _times(self, passed: Reading, inside: float) -> dict[str, float]:
        times = {}
        communication = max(0.0, float(passed.of("communication_seconds").min()))
        meeting = max(0.0, float(passed.of("meeting_seconds").min()))
        times["communication_seconds"] = round(communication, 6)
        times["meeting_seconds"] = round(meeting, 6)
        if passed.of("bytes_sent").any():
            wait = max(0.0, float(passed.of("first_bucket_wait_seconds").min()))
            times["first_bucket_wait_seconds"] = round(wait, 6)
        times["compute_seconds"] = round(max(0.0, inside - communication - meeting), 6)
        return times

    def _norms(self, passed: Reading) -> dict[str, Any]:
        assert self._recorder is not None
        sample: dict[str, Any] = {}
        norms = float(passed.of("norms")[0])
        if norms:
            sample["gradient_norm"] = math.sqrt(float(passed.of("square_norms")[0]) / norms)
        compressed = float(passed.of("square_gradients").sum())
        if compressed:
            lost = float(passed.of("square_errors").sum())
            sample["compression_error"] = math.sqrt(lost / compressed)
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


class CompiledClock:
    """Times executions of a train function whose program is compiled; as `StepClock` does.

    Devices compute while the host goes on. In a sample it waits for them, before and after.

    Args:
      compiler: What compiles it.
      model: The model that is trained.
    """

    def __init__(self, compiler: CompilesPrograms, model: Any) -> None:
        self._compiler, self._model = compiler, model
        self._asks = False

    def start(self) -> None:
        """Starts the clock of the first step."""
        self._last, self._before = time.perf_counter(), self._counted()

    def begin(self, sample: bool) -> None:
        """Begins an execution."""
        self._asks = sample
        if sample:
            self._compiler.wait()
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Ends with the training; nothing is open."""

    def end(self) -> dict[str, Any]:
        """Ends an execution, and returns its line. A sample has `compute_seconds`."""
        if self._asks:
            self._compiler.wait()
        now, counted = time.perf_counter(), self._counted()
        seconds, self._last = now - self._last, now
        steps, examples, waited = (
            new - old for new, old in zip(counted, self._before, strict=True)
        )
        self._before = counted
        line = _counts(steps, examples, seconds)
        line["input_seconds"] = round(min(waited, seconds), 6)
        facts = self._model.train_function.steps.explain()
        if facts is not None:
            line["bytes_sent"] = facts.bytes_moved * steps * self._compiler.processes.local_size
            line["collectives"] = {kind: n * steps for kind, n in facts.collectives.items()}
        if self._asks:
            line["compute_seconds"] = round(max(0.0, now - self._began - waited), 6)
        return line

    def _counted(self) -> tuple[int, int, float]:
        meter = self._model.train_function.meter
        return meter.steps, meter.examples, meter.waited_seconds


def _counts(steps: float, examples: float, seconds: float) -> dict[str, Any]:
    return {
        "steps": steps,
        "examples": examples,
        "seconds": round(seconds, 6),
        "examples_per_second": round(examples / seconds, 3) if seconds else 0.0,
    }
