"""A callback that keeps checkpoints of a training, from which `fit` goes on by itself."""

import contextlib
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from tfdp.base import machine
from tfdp.callbacks.checkpoint import callback_states, checkpoint_checks, folder, model_variables
from tfdp.callbacks.checkpoint.agreed_points import INTERVAL, AgreedPoints
from tfdp.callbacks.checkpoint.checkpoint_writer import CheckpointWriter
from tfdp.callbacks.checkpoint.data_place import AbstractPlace
from tfdp.callbacks.checkpoint.remote_path import as_path
from tfdp.cluster import rank_status
from tfdp.communication.collectives import random_states
from tfdp.communication.replicas import compiler_of, processes_of, replicas_of, sums_of


class Checkpoint(keras.callbacks.Callback):
    """Saves everything that decides the next step; a later `fit` continues from there.

    If you start the same script again after a kill at any moment, it ends with the bits of an
    undisturbed training; on another number of replicas within rounding. To begin anew, delete the
    folder or pass another one.

    A checkpoint holds the weights, the seeds of random layers, the optimizer (slots, accumulated
    gradients, iterations, loss scale, averages), the metrics of the epoch so far, the place in the
    data, the random states of Python and NumPy, `History`, and the states of EarlyStopping,
    ReduceLROnPlateau, ModelCheckpoint and of callbacks of your own that have `get_state` (which
    returns JSON) and `set_state`; a callback that counts without these begins anew. It also holds
    the order in which replicas sum: the same number of replicas and hosts uses the choice of
    `topology="auto"` again, and a warning names another engine, or other buckets or threads. It
    does not hold seeds of draws outside of layers, such as `keras.random.normal` without `seed=` in
    a `train_step`.

    A `tfdp.data.pipeline` moves to its place without reading. `fit` reads other data again from the
    beginning of the training, because nobody can save the place of their shuffling. They must come
    in the same order again: call `keras.utils.set_random_seed` first. If Keras does not know the
    length of the data before it has seen an epoch, the first epoch is saved only at its end.

    SIGTERM or SIGUSR1 to any rank makes all ranks stop after the same step, save a checkpoint and
    end with exit code 75 (`os.EX_TEMPFAIL`); within an epoch's evaluation, after it. If the program
    has its own handler for one of these signals, that stays.

    A checkpoint is one file, `step-00000120.checkpoint`, complete or absent. If the newest cannot
    be read, `fit` takes the one before, and the log gives the reason. In a cluster rank 0 writes
    and reads the files; the other ranks need not see the folder.

    Cost: at a checkpoint the step waits until each rank has copied its values: rank 0 the weights
    and other replicated state, every rank its own state (metrics, accumulated gradients; with
    `shard` its shard of the optimizer). A thread writes beside the next steps. It needs the memory
    of these copies, and rank 0 receives the others' one variable after the other. When a training
    continues, rank 0 reads one variable after the other, and sends it to all.

    Args:
      directory: The folder of this training's checkpoints, also of a file system that
        `tf.io.gfile` reaches (`gs://bucket/run`). The first checkpoint makes it.
      every_steps: The number of steps between checkpoints, over all epochs; with
        `steps_per_execution` a checkpoint follows the execution that reaches it.
      every_epochs: The number of epochs between checkpoints.
      every_seconds: The number of seconds between checkpoints, by rank 0's clock, at the end of a
        step. Pass exactly one of the three.
      keep: The number of checkpoints that stay; the oldest are deleted.

    Raises:
      ValueError: An argument is out of its range; or, when training begins, the model was made
        outside of the scope or is not built, there are two Checkpoints, the data cannot come in the
        same order again, or the checkpoint belongs to another model or other data.

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
        every_seconds: float | None = None,
        keep: int = 3,
    ) -> None:
        super().__init__()
        given = {
            "every_steps": every_steps,
            "every_epochs": every_epochs,
            "every_seconds": every_seconds,
        }
        if sum(value is not None for value in given.values()) != 1:
            received = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(
                "One of `every_steps`, `every_epochs` and `every_seconds` must be given; received "
                f"{received}. Use every_epochs=1, every_steps=1000, or every_seconds=600."
            )
        for name, value in {**given, "keep": keep}.items():
            kinds = (int, float) if name == "every_seconds" else (int,)
            if value is not None and (type(value) not in kinds or not value >= 1):
                what = "number" if name == "every_seconds" else "whole number"
                raise ValueError(
                    f"`{name}` must be a {what} of at least 1, but received {value!r}. "
                    f"Use {name}=3."
                )
        if not os.fspath(directory):
            raise ValueError("`directory` must name a folder; received ''. Use 'checkpoints'.")
        self.directory = as_path(directory)
        self.every_steps, self.every_epochs = every_steps, every_epochs
        self.every_seconds, self.keep = every_seconds, keep
        self._place: AbstractPlace | None = None
        self._others: list[Any] = []
        self._writer = CheckpointWriter(self.directory, keep)
        self._points: AgreedPoints | None = None
        self._mark: rank_status.StepMark | None = None
        self._ends = False
        self._restored: tuple[dict[str, Any], folder.ArraysOfFirst] | None = None

    @property
    def place(self) -> AbstractPlace:
        """The place in the data, as `fit` has set it.

        Raises:
          RuntimeError: No `fit` under a strategy has begun.
        """
        if self._place is None:
            raise RuntimeError(
                "Checkpoint must be a callback of `model.fit` under a strategy, but no `fit` has "
                "told it of its data. Make `tfdp.DataParallelStrategy()` first, and give the "
                "callback to `fit`."
            )
        return self._place

    def watch(self, place: AbstractPlace, callbacks: Sequence[Any]) -> None:
        """Notes the place in the data, and the callbacks beside this one; `fit` calls it.

        >>> import tempfile
        >>> from tfdp.callbacks.checkpoint.replayed_place import ReplayedPlace
        >>> kept = Checkpoint(tempfile.mkdtemp(), every_epochs=1)
        >>> kept.watch(ReplayedPlace([1, 2]), [kept])
        >>> kept.place.steps
        0
        """
        self._place = place
        self._others = [callback for callback in callbacks if callback is not self]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Continues from the newest checkpoint, if there is one."""
        if not self.params or "epochs" not in self.params:
            raise ValueError(
                "Checkpoint must know the number of epochs, but the CallbackList has no `params`. "
                "Give `fit` a list of callbacks, or the CallbackList `epochs=`."
            )
        checkpoint_checks.check_model(self.model)
        self._mark, self._ends = rank_status.StepMark(), False
        processes = processes_of(self.model.distribute_strategy)
        self.place.begin()
        self._points = AgreedPoints(processes, self.every_seconds)
        self._points.open()
        rank_status.tell(can_stop=True)
        self._epoch = self._kept_at = 0
        self._restored = None
        found = folder.newest_good_of_first(self.directory, processes)
        if found is None:
            return
        path, manifest, arrays = found
        # What begins anew after this, such as `History`, is restored after that.
        self._restored = manifest, arrays
        checkpoint_checks.check_same_training(
            self.model, self._others, path, manifest, arrays.stand_ins
        )
        logger = logging.getLogger("tfdp")
        log = logger.warning if processes.rank == 0 else logger.debug
        summing = sums_of(self.model.distribute_strategy)
        differs = summing.take_order_of_sums(manifest.get("sums", {}))
        if differs:
            log(
                "The training goes on within rounding, but not with the bits of one that was never "
                "stopped, for %s. Start it as before to have the same bits.",
                ", and ".join(differs),
            )
        self.place.restore(manifest["place"], manifest["random"], log)
        self._kept_at = self.place.steps
        self._epoch = self.params["epochs"] if manifest["stopped"] else manifest["epoch"]
        self.model._initial_epoch = self._epoch
        self._assign(manifest, arrays, metrics=False)
        left = (
            ""
            if self._epoch < self.params["epochs"]
            else ". No epoch is left: raise `epochs`, or give another folder, to train"
        )
        log(
            "The training goes on from %s: epoch %d, %d steps in all%s.",
            path,
            manifest["epoch"] + 1,
            self.place.steps,
            left,
        )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics and callbacks that Keras has reset."""
        self._epoch = epoch
        if self._restored is not None:
            manifest, arrays = self._restored
            if self.place.steps_in_epoch > 0:
                # Callbacks have begun this epoch twice, and Keras has reset the metrics.
                self._assign(manifest, arrays, metrics=False)
                self._assign(manifest, arrays, metrics=True)
            self._restore_history()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells `tfdp run` which step begins."""
        if self._mark is not None:
            self._mark.write(self.place.steps + 1)

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells `tfdp run` that the evaluation goes on."""
        if self._mark is not None:
            self._mark.reach()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts steps, and keeps a checkpoint within an epoch if one is due."""
        self.place.end_steps()
        # After an epoch's last step its results are still to come: see `on_epoch_end`.
        if self.place.is_within_epoch and not self.model.stop_training:
            asked = self._asked()
            if asked or self._due_in_steps():
                self._keep()
            self._stop_if(asked)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keeps a checkpoint between epochs if one is due, and at the training's end."""
        self._epoch = epoch + 1
        self.place.end_epoch()
        in_epochs = self.every_epochs is not None and self._epoch % self.every_epochs == 0
        last = self._epoch == self.params["epochs"] or self.model.stop_training
        asked = self._asked()
        if asked or last or in_epochs or self._due_in_steps():
            history = self.model.history
            # `History` comes after the callbacks that `fit` was given.
            self._keep({} if epoch in history.epoch else {epoch: dict(logs or {})})
        self._stop_if(asked)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until the last checkpoint is written."""
        if self._restored is not None:  # no epoch was left
            random_states.set_states(self._restored[0]["random"])
            self._restore_history()
        self._writer.wait()

    def close(self, well: bool = False) -> None:
        """Ends what the beginning of training began; `fit` calls it, however it ends.

        Args:
          well: Whether `fit` ends without an error.

        >>> import tempfile
        >>> Checkpoint(tempfile.mkdtemp(), every_epochs=1).close()
        """
        if self._points is not None:
            rank_status.tell(can_stop=False)
            self._points.close(self._ends, well)
            self._points = None
            self._writer.wait()
            if self._restored is not None:  # an error ended it before
                self._restored[1].close()
                self._restored = None
            if self._mark is not None:
                self._mark.close()
                self._mark = None
            self.model._initial_epoch = None  # the next `fit` is another training

    def _asked(self) -> dict[int, str]:
        return {} if self._points is None else self._points.here()

    def _stop_if(self, asked: dict[int, str]) -> None:
        """Ends the process if a signal came, when the checkpoint is written."""
        signals = {rank: what for rank, what in asked.items() if what != INTERVAL}
        if not signals:
            return
        self._writer.wait()
        if processes_of(self.model.distribute_strategy).rank == 0:
            logging.getLogger("tfdp").warning(
                "The training stops after %d steps, since %s came; exit code %d. Start the same "
                "command again to go on.",
                self.place.steps,
                " and ".join(f"{name} to rank {rank}" for rank, name in signals.items()),
                os.EX_TEMPFAIL,
            )
        self._ends = True
        raise SystemExit(os.EX_TEMPFAIL)

    def _due_in_steps(self) -> bool:
        every = self.every_steps
        return every is not None and self.place.steps // every > self._kept_at // every

    def _keep(self, results: Mapping[int, Mapping[str, float]] = MappingProxyType({})) -> None:
        """Keeps a checkpoint, on all ranks; with results of epochs that `History` has not yet."""
        strategy = self.model.distribute_strategy
        replicas, processes = replicas_of(strategy), processes_of(strategy)
        self._kept_at = self.place.steps
        assert self._points is not None  # training has begun
        self._writer.wait()  # lest there be two copies
        key = f"the checkpoint after {self.place.steps} steps of training {self._points.training}"
        compiler = compiler_of(strategy)
        at_home: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if compiler is not None:
            every = model_variables.named(self.model).values()
            at_home = compiler.at_home(map(model_variables.tensorflows, every))
        with at_home:
            copies = model_variables.copies(self.model, processes)
        arrays = model_variables.wholes(processes, key, copies)
        if processes.rank != 0:
            self._writer.send(arrays)
            return
        states, own = callback_states.get(self._others)
        history = {name: list(values) for name, values in self.model.history.history.items()}
        for logs in results.values():
            for name, value in logs.items():
                history.setdefault(name, []).append(value)
        manifest = {
            "versions": machine.versions(),
            "replicas": 1 if replicas is None else replicas.num_replicas,
            "sums": sums_of(strategy).order_of_sums(),
            "epoch": self._epoch,
            "stopped": bool(self.model.stop_training),
            "optimizer": type(self.model.optimizer).__name__,
            "place": self.place.state(),
            "random": random_states.states(),
            "callbacks": callback_states.kinds(self._others),
            "callback_states": states,
            "history": {name: list(map(_plain, values)) for name, values in history.items()},
            "epochs": [*self.model.history.epoch, *results],
        }
        self._writer.write(self.place.steps, manifest, itertools.chain(arrays, own.items()))

    def _restore_history(self) -> None:
        assert self._restored is not None
        manifest, arrays = self._restored
        arrays.close()
        self._restored = None
        history = self.model.history
        kept = manifest["history"].items()
        history.history = {name: list(map(_value, values)) for name, values in kept}
        history.epoch = list(manifest["epochs"])

    def _assign(
        self, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray], metrics: bool
    ) -> None:
        """Assigns what the checkpoint holds of the metrics, or of all else."""
        replicas = replicas_of(self.model.distribute_strategy)
        processes = processes_of(self.model.distribute_strategy)
        first = processes.rank * processes.local_size
        count = 1 if replicas is None else replicas.num_replicas
        model_variables.assign(self.model, arrays, metrics, first, count)
        if not metrics:
            callback_states.set_(self._others, manifest["callback_states"], arrays)


def _plain(value: Any) -> Any:
    """Returns a result in the logs as JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    array = np.asarray(value)
    if array.dtype == object:
        return repr(value)
    return array.item() if array.ndim == 0 else {"dtype": array.dtype.name, "is": array.tolist()}


def _value(plain: Any) -> Any:
    return np.array(plain["is"], plain["dtype"]) if isinstance(plain, dict) else plain
