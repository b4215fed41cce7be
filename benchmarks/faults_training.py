"""The training that `benchmarks faults` disturbs: each rank inflicts on itself what it is told.

A fault comes at a phase, which the rank itself knows best: the start of the process, the trace of
the first step, a step, the write of a checkpoint, the evaluation, the end. Faults come one after
the other; a file in the run's folder tells all ranks and attempts which have come.
"""

import hashlib
import json
import os
import pathlib
import resource
import signal
import sys
import threading
import time
from typing import Any

PHASES = ("start", "trace", "step", "save", "evaluate", "end")
KINDS = (
    "kill",
    "stop",
    "terminate",
    "usr1",
    "terminate the launcher",
    "kill the launcher",
    "full disk",
    "corrupt",
)

# What an elastic run may have beside these: another number of ranks, and nothing else.
RESIZE = "resize"

# Cuts of the link between two hosts, and how many seconds they last; None: until all have ended.
CUTS = {"cut for 3 s": 3.0, "cut for 30 s": 30.0, "cut for good": None}

# The file by which a training asks for a cut.
CUT = "cut"

# After these the other ranks may have ended, and nobody notices one that is stopped: it is killed.
_UNWATCHED = ("save", "end")

# The file of an elastic run that says how many ranks may run.
SLOTS = "slots"

# The files of a run that is drawn: how long it is, in JSON, and where rank 0 notes each step.
LENGTH, LOSSES = "length.json", "losses"

EPOCHS, EXAMPLES, BATCH = 3, 94, 12
STEPS = 8  # of an epoch; the last one is short
_SMALL_FILE_BYTES = 1 << 14  # less than a checkpoint, more than the notes of a run


class Injector:
    """Notes the phases of a rank, and inflicts the faults that are due.

    Args:
      folder: The run's folder.
      rank: The rank.
      world_size: The number of ranks, which may be fewer than were meant.
      faults: The faults in their order; `phase`, `rank`, `skip` (how many times the phase comes
        before), `delay` (seconds) and `kind`; of an elastic run `slots`, the ranks that may run
        from then on.
    """

    def __init__(
        self, folder: pathlib.Path, rank: int, world_size: int, faults: list[dict[str, Any]]
    ) -> None:
        self._folder, self._rank, self._faults = folder, rank, faults
        self._world_size = world_size
        self._seen: dict[int, int] = {}  # how often each fault's phase has come since it was due

    def phase(self, name: str) -> None:
        """Notes that a phase comes; the next fault follows if it is due here."""
        number = len(list(self._folder.glob("fault-*")))
        if number >= len(self._faults):
            return
        fault = self._faults[number]
        if (fault["phase"], fault["rank"] % self._world_size) != (name, self._rank):
            return
        seen = self._seen[number] = self._seen.get(number, 0) + 1
        if seen == fault["skip"] + 1:
            unnoticed = fault["kind"] == "stop" and name in _UNWATCHED
            kind = "kill" if unnoticed else fault["kind"]
            threading.Timer(fault["delay"], self._inflict, [number, kind]).start()

    def note(self, what: str) -> None:
        """Writes a line with the time, which all processes of a host share."""
        with open(self._folder / "events", "a") as file:
            file.write(json.dumps([time.monotonic(), self._rank, what]) + "\n")

    def _inflict(self, number: int, kind: str) -> None:
        (self._folder / f"fault-{number}").write_text(str(time.monotonic()))
        if "slots" in self._faults[number]:
            (self._folder / SLOTS).write_text(str(self._faults[number]["slots"]))
        if kind in CUTS:
            (self._folder / "cut-new").write_text(kind)
            (self._folder / "cut-new").rename(self._folder / CUT)
            return
        if kind == RESIZE:
            return
        launcher = int((self._folder / "launcher").read_text())
        if kind == "full disk":  # for this process, until it ends
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL_FILE_BYTES, most))
            return
        if kind == "corrupt":
            for path in sorted((self._folder / "kept").glob("*.checkpoint"))[-1:]:
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
        target = launcher if kind.endswith("launcher") else os.getpid()
        numbers = {
            "stop": signal.SIGSTOP,
            "terminate": signal.SIGTERM,
            "usr1": signal.SIGUSR1,
            "terminate the launcher": signal.SIGTERM,
        }
        os.kill(target, numbers.get(kind, signal.SIGKILL))


def main(arguments: list[str]) -> None:
    """Trains, and writes the SHA-256 of all variables to `digest-RANK`.

    Args:
      arguments: The run's folder, with `faults.json` in it.
    """
    folder = pathlib.Path(arguments[0])
    config = json.loads(os.environ["TF_CONFIG"])
    rank, world_size = config["task"]["index"], len(config["cluster"]["worker"])
    elastic = (folder / SLOTS).exists()
    injector = Injector(folder, rank, world_size, json.loads((folder / "faults.json").read_text()))
    injector.phase("start")
    length = {"epochs": EPOCHS, "pause_seconds": 0.0}
    if (folder / LENGTH).exists():
        length |= json.loads((folder / LENGTH).read_text())
    epochs = int(length["epochs"])

    import keras
    import numpy as np
    import tensorflow as tf

    import tfdp
    from tfdp.callbacks.checkpoint import archive

    write = archive.write

    def noted_write(*arguments: Any) -> None:
        injector.phase("save")
        write(*arguments)

    archive.write = noted_write  # type: ignore[assignment]

    class Phases(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            injector.phase("trace")

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            injector.phase("step")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            injector.note("step")
            if rank == 0:
                with open(folder / LOSSES, "a") as file:
                    line = [kept.place.steps + 1, world_size, float(logs["loss"])]
                    file.write(json.dumps(line) + "\n")
            time.sleep(length["pause_seconds"])

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            injector.phase("evaluate")

    keras.utils.set_random_seed(3)
    strategy = tfdp.DataParallelStrategy(timeout_seconds=60, startup_timeout_seconds=60)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([20]),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dropout(0.3),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        adam = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=3)
        model.compile(adam, "mse", metrics=["mae"])
    random = np.random.default_rng(7)
    x = random.normal(size=[EXAMPLES, 20]).astype("float32")
    y = np.tanh(x[:, :1] - x[:, 1:2] * x[:, 2:3])
    kept = tfdp.callbacks.Checkpoint(folder / "kept", every_steps=3)
    slower = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.1)
    history = model.fit(
        tfdp.data.pipeline((x, y), BATCH, seed=7),
        epochs=epochs,
        validation_data=(x[:24], y[:24]),
        callbacks=[Phases(), slower, kept],
        verbose=0,
    )
    injector.phase("end")
    time.sleep(0.1)  # for a fault with a delay
    values = [np.array(tf.convert_to_tensor(v)) for v in (*model.variables, *adam.variables)]
    assert int(adam.iterations) == epochs * STEPS // 3, "a step was made twice or left out"
    told = repr([sorted(history.history.items()), history.epoch]).encode()
    if elastic:
        np.savez(folder / f"weights-{rank}.npz", *model.get_weights())
    digest = hashlib.sha256(b"".join([*(v.tobytes() for v in values), told])).hexdigest()
    (folder / f"digest-{rank}").write_text(digest)


if __name__ == "__main__":
    main(sys.argv[1:])
