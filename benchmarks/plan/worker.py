"""One rank of one measurement of `benchmarks plan`; prints one line of JSON.

    tfdp run -n 2 -- python -m benchmarks.on_host NAME,NAME 0,1 \
        python -m benchmarks.plan.worker --steps 8 --sending "" --topologies ring,tree
"""

import argparse
import dataclasses
import itertools
import json
import time
from typing import Any

import keras
import tensorflow as tf

import tfdp
from benchmarks import on_host
from benchmarks.plan import models
from benchmarks.sending import arguments_of

# The steps before the timed ones: the first traces, the second is the first that was traced.
_WARM_UP = 2


def measure(steps: int, sending: str, topologies: str, probe: bool) -> dict[str, Any]:
    """Times steps of `model.fit` by each topology, in the cluster that this process is in.

    Args:
      steps: The number of timed steps.
      sending: The strategy's other arguments; see `benchmarks.sending.arguments_of`.
      topologies: Names with commas between.
      probe: Whether the links are measured too, as `topology="auto"` does.

    Returns:
      `links`, as measured, or None; `cells`, for each model and topology `seconds` (each step's),
      `first_seconds` (the step that traces) and `bytes_per_step` that the host of rank 0 sent.
    """
    made = {
        topology: tfdp.DataParallelStrategy(topology=topology, **arguments_of(sending))
        for topology in topologies.split(",")
    }
    first = next(iter(made.values()))
    links = dataclasses.asdict(first.extended.probe().links()) if probe else None
    cells = [
        {"model": model, "topology": topology, **_timed(strategy, model, steps)}
        for model in models.NAMES
        for topology, strategy in made.items()
    ]
    return {"links": links, "cells": cells}


def _timed(strategy: Any, model: str, steps: int) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        built = models.build(model)
    batch = models.random_batch(model, strategy.num_replicas_in_sync * models.BATCH)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    clock = _Clock()
    began = time.perf_counter()
    built.fit(data, steps_per_epoch=_WARM_UP + steps, callbacks=[clock], verbose=0)
    timed = clock.times[_WARM_UP - 1 :]
    return {
        "seconds": [end - begin for begin, end in itertools.pairwise(timed)],
        "first_seconds": clock.times[0] - began,
        "bytes_per_step": (clock.sent[-1] - clock.sent[_WARM_UP - 1]) / steps,
    }


class _Clock(keras.callbacks.Callback):
    """A callback that reads clock and link at each step's end."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.sent: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a step's end says."""
        self.times.append(time.perf_counter())
        self.sent.append(on_host.bytes_sent())


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = argparse.ArgumentParser(description="One measurement of `benchmarks plan`.")
    for name in ("--sending", "--topologies"):
        parser.add_argument(name, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--probe", action="store_true")
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
