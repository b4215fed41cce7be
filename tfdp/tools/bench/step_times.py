"""The times at which the steps of a training begin and end."""

import time
from typing import Any

import keras


class StepTimes(keras.callbacks.Callback):
    """A callback that notes when each step begins, and when its loss is known on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[float, float]] = []
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the time at which the step begins."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the times at which the step began and ended."""
        self.steps.append((self._began, time.perf_counter()))
