"""A callback that keeps checkpoints of a training, from which `fit` goes on by itself."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from tfdp import machine
from tfdp.checkpoint import archive, callback_states, folder, variables
from tfdp.checkpoint.writer import Writer
from tfdp.collectives import random_states
from tfdp.replicas import processes_of, replicas_of


class Checkpoint(keras.callbacks.Callback):
    """Keeps all that decides the next step, and goes on from there when `fit` is called again.

    The same script, started again after a kill at any moment, ends with the bits of a training that
    was never disturbed; on another number of replicas within rounding. Begin anew by deleting the
    folder, or give another.

    A checkpoint holds the weights, the seeds of random layers, the optimizer (slots, accumulated
    gradients, iterations, loss scale, averages), the metrics of the epoch so far, the place in the
    data, the random states of Python and NumPy, `History`, and the states of EarlyStopping,
    ReduceLROnPlateau, ModelCheckpoint and of callbacks of your own that have `get_state` (which
    returns JSON) and `set_state`. It does not hold seeds of draws that no layer keeps, such as
    `keras.random.normal` without `seed=` in a `train_step`.

    A checkpoint is one file, `step-00000120.checkpoint`, whole or not there. If the newest cannot
    be read, the one before is taken, and the log says why. In a cluster rank 0 writes and reads the
    files; the others need not see the folder.

    Cost: at a checkpoint the step waits until all variables are copied, in a cluster while rank 0
    gets what each replica has of its own (metrics, accumulated gradients). A thread writes the copy
    beside the next steps. It takes the memory of one copy.

    Args:
      directory: The folder of this training's checkpoints. The first one makes it.
      every_steps: Keep a checkpoint after so many steps, counted over all epochs; with
        `steps_per_execution` after the execution that reaches them.
      every_epochs: Keep one after so many epochs. One of the two must be given.
      keep: How many checkpoints stay; the oldest go.

    Raises:
      ValueError: An argument is out of its range; or, when training begins, the model was made
        outside of the scope or is not built, the data are no `tfdp.data.pipeline`,
        `steps_per_epoch` is given, or the checkpoint is of another model.

    >>> import keras, numpy as np, tempfile, tfdp
    >>> directory = tempfile.mkdtemp()
    >>> def train(epochs):
    ...     keras.utils.set_random_seed(1)
    ...     with tfdp.DataParallelStrategy(devices=["CPU:0"]).scope():
    ...         model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    ...         model.compile("adam", "mse")
    ...     batches = tfdp.data.pipeline((np.ones([8, 4]), np.ones([8, 1])), 4, seed=1)
    ...     kept = tfdp.callbacks.Checkpoint(directory, every_epochs=1)
    ...     return model.fit(batches, epochs=epochs, callbacks=[kept], verbose=0)
    >>> len(train(epochs=1).epoch), train(epochs=3).epoch
    (1, [0, 1, 2])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every_steps: int | None = None,
        every_epochs: int | None = None,
        keep: int = 3,
    ) -> None:
        super().__init__()
        if (every_steps is None) == (every_epochs is None):
            raise ValueError(
                "One of `every_steps` and `every_epochs` must be given; received "
                f"every_steps={every_steps!r} and every_epochs={every_epochs!r}. Use "
                "every_epochs=1, or every_steps=1000."
            )
        given = {"every_steps": every_steps, "every_epochs": every_epochs, "keep": keep}
        for name, value in given.items():
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"`{name}` must be a whole number of at least 1, but received {value!r}. "
                    f"Use {name}=3."
                )
        if not os.fspath(directory):
            raise ValueError("`directory` must name a folder; received ''. Use 'checkpoints'.")
        self.directory = pathlib.Path(directory)
        self.every_steps, self.every_epochs, self.keep = every_steps, every_epochs, keep
        self._feed: Any = None
        self._steps_per_epoch: int | None = None
        self._others: list[Any] = []
        self._writer = Writer(self.directory, keep)
        self._restored: tuple[dict[str, Any], dict[str, Any]] | None = None

    def watch(self, data: Any, steps_per_epoch: int | None, callbacks: Sequence[Any]) -> None:
        """Notes what `fit` is given; `fit` calls it."""
        self._feed, self._steps_per_epoch = data, steps_per_epoch
        self._others = [callback for callback in callbacks if callback is not self]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        self._check()
        processes = processes_of(self.model.distribute_strategy)
        path, manifest, arrays = self._read(processes)
        self._epoch = self._steps = self._kept_at = 0
        self._restored = None
        if path is None:
            self._batches = self._feed.progress.batches
            return
        self._check_fits(path, manifest, arrays)
        self._assign(arrays, metrics=False)
        self._feed.restore(manifest["pipeline"])
        self._batches = self._feed.progress.batches
        random_states.set_states(manifest["random"])
        self._steps = self._kept_at = manifest["step"]
        self._epoch = self.params["epochs"] if manifest["stopped"] else manifest["epoch"]
        self.model._initial_epoch = self._epoch
        # What the other callbacks and Keras reset at the beginning is restored after that.
        self._restored = manifest, arrays
        log = logging.getLogger("tfdp")
        (log.warning if processes.rank == 0 else log.debug)(
            "The training goes on from %s: epoch %d, %d steps in all.",
            path,
            manifest["epoch"] + 1,
            self._steps,
        )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores what is reset at an epoch's beginning, or keeps the epoch before."""
        if self._restored is not None:
            if self._restored[0]["pipeline"]["position"] > 0:  # else a new epoch begins
                self._assign(self._restored[1], metrics=True)
            self._restore_callbacks()
        else:
            self._keep_if_due(epoch)
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts steps, and keeps a checkpoint within an epoch if one is due."""
        batches = self._feed.progress.batches
        self._steps += batches - self._batches
        self._batches = batches
        # After an epoch's last step its results are still to come: see `on_epoch_begin`.
        if self._due_in_steps() and self._feed.state()["position"] > 0:
            self.save_now()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        self._epoch = epoch + 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the end of the training, and waits until it is written."""
        if self._restored is not None:  # no epoch was left
            self._restore_callbacks()
        elif self._steps > self._kept_at:
            self.save_now()
        self._writer.wait()
        self.model._initial_epoch = None

    def save_now(self) -> None:
        """Keeps a checkpoint of the present state: at the end of a step or epoch, on all ranks."""
        strategy = self.model.distribute_strategy
        replicas, processes = replicas_of(strategy), processes_of(strategy)
        assert replicas is not None  # `_check` refuses the others
        self._kept_at = self._steps
        arrays = variables.arrays(self.model)
        if processes.world_size > 1:
            arrays |= variables.gathered(processes, self.model, arrays)
        if processes.rank != 0:
            return
        states, own = callback_states.get(self._others)
        history = self.model.history
        manifest = {
            "versions": machine.versions(),
            "replicas": replicas.num_replicas,
            "step": self._steps,
            "epoch": self._epoch,
            "stopped": bool(self.model.stop_training),
            "optimizer": type(self.model.optimizer).__name__,
            "pipeline": self._feed.state(),
            "random": random_states.states(),
            "callbacks": callback_states.kinds(self._others),
            "callback_states": states,
            "history": {k: [float(v) for v in values] for k, values in history.history.items()},
            "epochs": list(history.epoch),
        }
        self._writer.write(self._steps, manifest, {**arrays, **own})

    def _assign(self, arrays: dict[str, Any], metrics: bool) -> None:
        replicas = replicas_of(self.model.distribute_strategy)
        processes = processes_of(self.model.distribute_strategy)
        first = processes.rank * processes.local_size
        assert replicas is not None  # `_check` refuses the others
        variables.assign(self.model, arrays, metrics, first, replicas.num_replicas)

    def _keep_if_due(self, epoch: int) -> None:
        in_epochs = self.every_epochs is not None and epoch % self.every_epochs == 0
        if self._due_in_steps() or (in_epochs and self._steps > self._kept_at):
            self.save_now()

    def _due_in_steps(self) -> bool:
        every = self.every_steps
        return every is not None and self._steps // every > self._kept_at // every

    def _restore_callbacks(self) -> None:
        assert self._restored is not None
        manifest, arrays = self._restored
        self._restored = None
        callback_states.set_(self._others, manifest["callback_states"], arrays)
        history = self.model.history
        history.history = {name: list(values) for name, values in manifest["history"].items()}
        history.epoch = list(manifest["epochs"])

    def _read(self, processes: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Returns what rank 0 finds in the folder; on the other ranks what rank 0 sends."""
        if processes.rank != 0:
            post = processes.from_first("the checkpoint to go on from")
            if not post.value:
                return None, {}, {}
            return pathlib.Path(post.value), *archive.read(post.payload)
        path, manifest, arrays, passed_over = folder.newest_good(self.directory)
        for text in passed_over:
            logging.getLogger("tfdp").warning("A checkpoint was passed over: %s.", text)
        if processes.world_size > 1:
            content = b"" if path is None else path.read_bytes()
            processes.from_first("the checkpoint to go on from", str(path or ""), content)
        return path, manifest, arrays

    def _check(self) -> None:
        strategy = self.model.distribute_strategy
        if replicas_of(strategy) is None:
            raise ValueError(
                "Checkpoint needs a model of a DataParallelStrategy, but "
                f"{self.model.name!r} was made outside of one. Make and compile the model within "
                "`with tfdp.DataParallelStrategy().scope():`; it may have one replica."
            )
        said_by = processes_of(strategy).said_by
        if not hasattr(self._feed, "progress"):
            raise ValueError(
                f"{said_by}Checkpoint needs data whose place is known, but `fit` was given "
                f"{type(self._feed).__name__}. Give it `tfdp.data.pipeline(...)`, or use "
                "`keras.callbacks.BackupAndRestore`, which begins epochs anew."
            )
        if self._steps_per_epoch is not None:
            raise ValueError(
                f"{said_by}With Checkpoint an epoch must be one of the pipeline's, but `fit` was "
                f"given steps_per_epoch={self._steps_per_epoch}. Leave it out."
            )
        optimizer = self.model.optimizer
        if not self.model.built or not getattr(optimizer, "built", True):
            raise ValueError(
                f"{said_by}Checkpoint needs a model that is built when training begins, but "
                f"{self.model.name!r} is built by its first step. Build it before: give it a "
                "`keras.Input`, or call it and `optimizer.build(model.trainable_variables)`."
            )

    def _check_fits(self, path: Any, manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
        different = None
        pairs = {
            "the optimizer": (manifest["optimizer"], type(self.model.optimizer).__name__),
            "the callbacks": (manifest["callbacks"], callback_states.kinds(self._others)),
        }
        for what, (there, here) in pairs.items():
            if there != here:
                different = f"{what} there: {there}; here: {here}"
        own = {name: a for name, a in arrays.items() if not name.startswith("callback-")}
        different = different or variables.difference(self.model, own)
        if different is not None:
            said_by = processes_of(self.model.distribute_strategy).said_by
            raise ValueError(
                f"{said_by}A checkpoint must be of the same training, but {str(path)!r} is of "
                f"another: {different}. Give Checkpoint another folder, or delete "
                f"{str(self.directory)!r} to begin anew."
            )
