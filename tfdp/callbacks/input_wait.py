"""A callback that logs the part of the time in which steps wait for input."""

import time
from typing import Any

import keras


class InputMonitor(keras.callbacks.Callback):
    """Adds `input_wait` to the logs of training: the fraction of time spent waiting for input.

    0.02 means that steps wait for the next batch for 20 ms of each second. Near 1 the steps only
    wait: then read, decode or map in less time, or use `cache`. In the logs of a batch it is the
    fraction of the epoch so far; in the logs of an epoch the fraction of all its steps, without
    validation. If a restart continues in the middle of an epoch, it counts the steps since then.

    Under a strategy of tfdp it is the time in which this process' replicas wait for their shards.
    Other strategies fetch batches beforehand; there it is the time in which they wait.

    Args:
      pipeline: A `tfdp.data.Pipeline`; None: the one that you pass to `fit`.

    Raises:
      ValueError: There is no pipeline when training begins.

    >>> import keras, numpy as np, tfdp
    >>> with tfdp.DataParallelStrategy(devices=["CPU:0"]).scope():
    ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> arrays = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
    >>> batches = tfdp.data.pipeline(arrays, 4, seed=1)
    >>> history = model.fit(batches, callbacks=[InputMonitor()], verbose=0).history
    >>> 0 <= history["input_wait"][0] <= 1
    True
    """

    def __init__(self, pipeline: Any = None) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._watched = pipeline

    def watch(self, data: Any, pipeline: Any) -> None:
        """Sets the pipeline for the next training, unless the constructor did; `fit` calls it.

        >>> import numpy as np, tfdp
        >>> monitor = InputMonitor()
        >>> batches = tfdp.data.pipeline(np.ones(8), 4, seed=1)
        >>> monitor.watch(batches, batches)
        >>> monitor.on_train_begin()
        """
        if self.pipeline is None:
            self._watched = pipeline

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that there is a pipeline."""
        if self._watched is None:
            raise ValueError(
                "InputMonitor needs a `tfdp.data.Pipeline`, but `fit` was given other data. Make "
                "it by `tfdp.data.pipeline(...)`, or leave the callback out."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()
        self._waited_before = self._watched.progress.waited_seconds
        self._fraction = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the fraction so far to the batch's logs."""
        elapsed = time.perf_counter() - self._began
        waited = self._watched.progress.waited_seconds - self._waited_before
        self._fraction = min(1.0, waited / elapsed) if elapsed > 0 else 0.0
        if logs is not None:
            logs["input_wait"] = self._fraction

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the epoch's fraction to its logs."""
        if logs is not None:
            logs["input_wait"] = self._fraction
