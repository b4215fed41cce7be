"""One rank of one measurement of `benchmarks slow-links`; prints one line of JSON.

    tfdp run -n 2 -- python -m benchmarks.on_host NAME,NAME 0,1 \
        python -m benchmarks.slow_links_worker --strategy "compression=Int8()" --model mlp ...

Without `benchmarks.on_host` the ranks are on this host, and no bytes are counted.
"""

import argparse
import json
import time
from typing import Any

import keras
import tensorflow as tf

import tfdp
from benchmarks import on_host
from benchmarks.sending import arguments_of
from tfdp.tools.bench import bench_models

# The steps before the timed ones: the first traces, the second is the first that was traced.
_WARM_UP = 3

# The timed steps where each of them sends the same.
_STEPS = 8


def measure(strategy: str, model: str, batch: int, engine: str, topology: str) -> dict:
    """Times steps of `model.fit` in the cluster that this process is in.

    Args:
      strategy: One of `benchmarks.slow_links.ARGUMENTS`.
      model: A name of :mod:`tfdp.tools.bench.bench_models`.
      batch: The number of examples per replica.
      engine: The strategy's engine.
      topology: The strategy's topology.

    Returns:
      The configuration; `parameters`; `seconds_per_step`, the mean over whole rounds of a
      synchronization, else over 8 steps; `processor_seconds_per_step`, the seconds of a core that
      this rank's process took meanwhile; `bytes_per_step`, for each rank those that its host sent
      over its link, 0 on no host of `benchmarks.hosts`.
    """
    arguments = arguments_of(strategy)
    every = getattr(arguments.get("synchronization"), "every", 1)
    steps = every if 1 < every <= 1000 else _STEPS
    made = tfdp.DataParallelStrategy(engine=engine, topology=topology, **arguments)
    keras.utils.set_random_seed(0)
    with made.scope():
        built = bench_models.build_model(model)
    inputs, labels = bench_models.random_batch(model, made.num_replicas_in_sync * batch)
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
    clock = _Clock(steps)
    built.fit(data, epochs=1, steps_per_epoch=_WARM_UP + steps, callbacks=[clock], verbose=0)
    sent = made.gather(tf.constant([clock.bytes_sent], tf.int64), axis=0)
    return {
        "strategy": strategy,
        "model": model,
        "engine": engine,
        "parameters": built.count_params(),
        "seconds_per_step": clock.seconds / steps,
        "processor_seconds_per_step": clock.processor_seconds / steps,
        "bytes_per_step": [count / steps for count in sent.numpy().tolist()],
    }


class _Clock(keras.callbacks.Callback):
    """A callback that reads clocks and link after the warm-up, and again after the timed steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.seconds = self.processor_seconds = 0.0
        self.bytes_sent = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a step's end says."""
        sign = {_WARM_UP - 1: -1, _WARM_UP + self._steps - 1: 1}.get(batch, 0)
        self.seconds += sign * time.perf_counter()
        self.processor_seconds += sign * time.process_time()
        if sign and on_host.is_on_host():
            self.bytes_sent += sign * on_host.bytes_sent()


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = argparse.ArgumentParser(description="One measurement of `benchmarks slow-links`.")
    for name in ("--strategy", "--model", "--engine", "--topology"):
        parser.add_argument(name, required=True)
    parser.add_argument("--batch", type=int, required=True)
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
