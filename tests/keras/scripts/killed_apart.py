"""A rank of a training whose ranks train apart, of which one kills itself: `test_asynchronous.py`.

Usage: killed_apart.py FOLDER RANK COMES_AGAIN
"""

import json
import os
import pathlib
import signal
import sys
import time

import harness
import keras
import numpy as np

import tfdp
from tfdp.synchronization import Asynchronous

FOLDER, DIES, COMES_AGAIN = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
KILLED, AGAIN = FOLDER / "killed", FOLDER / "again"
SECONDS = 120.0


def until(holds):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


class Story(keras.callbacks.Callback):
    """Kills the rank in its first life; the others do not end before they have seen what comes."""

    batches = 0

    def on_train_begin(self, logs=None):
        """Sees the weights to begin with: of a rank that comes again those of the others."""
        told_first.append(float(np.mean((self.model.predict(x, verbose=0) - y) ** 2)))

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if strategy.rank == DIES:
            if not KILLED.exists() and self.batches == 12:
                KILLED.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.batches == 12:
            until(KILLED.exists)
            until(lambda: AGAIN.exists() if COMES_AGAIN else DIES not in homes.alive())


strategy = tfdp.DataParallelStrategy(["CPU:0"], synchronization=Asynchronous(3, staleness=20))
homes = strategy.extended.processes.homes
comes_again = KILLED.exists()
x, y = harness.regression_data(280)
harness.start_over(seed=strategy.rank)
with strategy.scope():
    model = harness.dense_model(keras.optimizers.SGD(0.02), metrics=())
model.optimizer.build(model.trainable_variables)
told_first = []
if comes_again:
    AGAIN.touch()
told = model.fit(x, y, batch_size=12, epochs=4, verbose=0, callbacks=[Story()])
said = {
    "weights": [each.tolist() for each in model.get_weights()],
    "epochs": told.epoch,
    "updates": int(model.optimizer.iterations),
    "losses": [*told_first, model.evaluate(x, y, verbose=0)],
}
FOLDER.joinpath(f"rank {strategy.rank}").write_text(json.dumps(said))
