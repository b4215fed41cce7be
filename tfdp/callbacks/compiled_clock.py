"""The parts of a step's time where a compiler makes its program, and what is known of that."""

from __future__ import annotations

import time
from typing import Any

from tfdp.communication.replicas import CompilesPrograms


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
        line: dict[str, Any] = {
            "steps": steps,
            "examples": examples,
            "seconds": round(seconds, 6),
            "examples_per_second": round(examples / seconds, 3) if seconds else 0.0,
            "input_seconds": round(min(waited, seconds), 6),
        }
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
