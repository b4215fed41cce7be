"""One rank of one measurement of `benchmarks slow-ranks`; prints one line of JSON.

tfdp run -n 4 -- python -m benchmarks.slow_ranks_worker --synchronization "LocalSGD(16)" ...
"""

import argparse
import json
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from benchmarks.sending import made
from tfdp import cluster

# Rows of a rank in a step, and the units of a small model: what a rank computes is its sleep.
_ROWS, _FEATURES = 8, 16
_WARM_UP_STEPS = 4


class Sleep(keras.callbacks.Callback):
    """Makes a rank's step take a time, as a device of that speed would.

    Args:
      seconds: The seconds of a step.
      pause_every: The steps after which it stops for `pause_seconds` as well; 0: it never does.
      pause_seconds: How long it stops.
    """

    def __init__(self, seconds: float, pause_every: int, pause_seconds: float) -> None:
        super().__init__()
        self._seconds, self._every, self._pause = seconds, pause_every, pause_seconds
        self.steps, self.began = 0, 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets the steps of a `fit` before."""
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sleeps; the clock begins after the first step, which makes the data's functions."""
        if self.steps == 0:
            self.began = time.monotonic()
        self.steps += 1
        paused = self._every and self.steps % self._every == self._every // 2
        time.sleep(self._seconds + (self._pause if paused else 0.0))


def measure(synchronization: str, steps: int, sleep: Sleep, ranks: int) -> dict[str, Any]:
    """Times a `fit` of the cluster that this process is in, or of this rank alone.

    Args:
      synchronization: What makes the strategy's, "" for sums of gradients; "alone": the rank has no
        others.
      steps: The steps of an epoch.
      sleep: Makes the rank's steps take their time.
      ranks: The number of ranks that share each batch; alone it takes its part of each.

    Returns:
      `seconds` from the first step of the `fit` to its end, and the `examples` that this rank has
      trained on meanwhile.
    """
    alone = synchronization == "alone"
    method = None if alone or not synchronization else made(synchronization)
    nobody = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    strategy = tfdp.DataParallelStrategy(
        ["CPU:0"], cluster_resolver=nobody if alone else None, synchronization=method
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((_FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    batch = _ROWS * (1 if alone else ranks)
    x = np.random.default_rng(0).normal(size=(steps * batch, _FEATURES)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    few = _WARM_UP_STEPS * batch
    model.fit(x[:few], y[:few], batch_size=batch, verbose=0)
    model.fit(x, y, batch_size=batch, verbose=0, callbacks=[sleep])
    return {
        "seconds": time.monotonic() - sleep.began,
        "examples": (sleep.steps - 1) * _ROWS,
    }


def main() -> None:
    """Measures, and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--synchronization", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=json.loads, required=True)
    parser.add_argument("--pause-every", type=json.loads, required=True)
    parser.add_argument("--pause-seconds", type=float, required=True)
    given = parser.parse_args()
    rank = cluster.rank_in_environment() or 0
    sleep = Sleep(given.seconds[rank], given.pause_every[rank], given.pause_seconds)
    print(json.dumps(measure(given.synchronization, given.steps, sleep, len(given.seconds))))


if __name__ == "__main__":
    main()
