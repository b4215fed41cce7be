"""`Telemetry`: the record of what a training spends its time on, step by step and rank by rank."""

import logging
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfdp import cluster
from tfdp.base.log_lines import FORMAT
from tfdp.base.recording import Recorder
from tfdp.base.stragglers import LEAST_SAMPLES, stragglers
from tfdp.callbacks.checkpoint.data_place import AbstractPlace
from tfdp.callbacks.log_files import LogFiles
from tfdp.callbacks.loss_scale_monitor import applied_steps
from tfdp.callbacks.manifest import write_manifest
from tfdp.callbacks.run_facts import described, host_name, steps_before
from tfdp.callbacks.step_clock import CompiledClock, StepClock
from tfdp.cluster import rank_status
from tfdp.communication.replicas import ProcessGroup, compiler_of, processes_of, replicas_of


class Telemetry(keras.callbacks.Callback):
    """Records how each rank's steps spend their time, for TensorBoard and `tfdp report`.

    Each rank writes `rankN.jsonl`, a line for each execution of the train function, and rank 0
    `manifest.json` (:func:`tfdp.write_manifest`). The lines of steps have:

    - `step`, `steps`, `epoch`; `examples` and `examples_per_second` of all replicas; `seconds`,
      from the end of the step before to the end of this; `loss`, as Keras shows it: the mean since
      the epoch began.
    - `input_seconds`: the time spent waiting for the batch. With data other than a
      `tfdp.data.Pipeline` it is measured only where `steps_per_execution` is 1.
    - `bytes_sent`: the bytes of gradients, and of what travels in their buckets, that this rank's
      replicas sent by the topology's schedule, also to each other.
    - `collectives`: the number of sums over the replicas. `meetings` are those that the step itself
      waits for, before or inside its backward pass; `buckets` are those of gradients, and of what
      travels with them; `endings` are at the end of the step, with the metrics. A sum of several
      dtypes counts once for each.
    - `loss_scale` and `skipped_steps`, with a `LossScaleOptimizer`.
    - `dropped_examples`, with `tfdp.synchronization.BackupWorkers`: those of late ranks.
    - In samples `communication_seconds`, the *exposed* communication: from the end of the backward
      pass, when the last gradient is there, to the last bucket's sum. It leaves out what was sent
      while the backward pass went on, but holds the waiting for a rank that comes late.
      `first_bucket_wait_seconds`, from this rank's arrival at the first bucket to its sum.
      `meeting_seconds`, from the arrival to the end of the meetings: of processes that compare
      their batches as a step begins, and of sums that the backward pass needs, such as statistics
      of BatchNormalization. Most are few bytes, so this is waiting for whoever is late.
      `compute_seconds`, what remains of the train function. If a process has several replicas, the
      last to arrive counts.
    - In samples `gradient_norm`, the global norm after reduction and unscaling, before clipping, of
      all optimizers of the step together; and for `tfdp.optimizers.LARS` and `LAMB` the least,
      median and largest trust ratio. With a compression of updates, such as
      `tfdp.compression.ErrorFeedback(...)`, `compression_error`: the norm of the lost part of this
      rank's own gradients, over their norm; with feedback that of the residual.

    Every `sample_every` steps one is a sample; with gradient accumulation it lasts until a window
    closes. Under `Asynchronous` an epoch's line has `staleness` as well: how often a change that
    came to this rank's homes in the epoch was so many changes late.

    With `steps_per_execution` above 1 a line and a sample are a whole execution: seconds
    and bytes are those of all its steps, the norm is the root of their mean square. On GPUs
    times are taken when the values have arrived on the host. With `run_eagerly` there are no bytes
    and no parts of the step.

    After each epoch that has brought them to five samples, the ranks compare how long they waited
    for each other, at the first bucket and in meetings. Ranks that waited less than the median of
    the others by 5 % of a step, 1 ms and more than noise, again and again, are named in the log
    (logger `tfdp`) and in a `straggler` line each: the rule of `tfdp.base.stragglers`.

    Under `tfdp.XLAStrategy` `compute_seconds` holds communication, which XLA has within the
    program; the loss is read in samples alone, since devices compute while the host goes on;
    `bytes_sent` are those of the results of the program's collectives, on all devices of the
    process, and `collectives` counts them by kind. There are neither norms nor ratios, and no waits
    that would tell a rank that is late.

    Under another strategy than tfdp's, or none, the lines hold only values of Keras: no examples,
    communication, norms or ratios. To compare with one device, use
    `tfdp.DataParallelStrategy(devices=["CPU:0"])`.

    Cost: in a step that is no sample, some ten scalars written on the host beside the step, and a
    line of 200 bytes; in a sample, one pass over the gradients. The first `fit` with the callback
    traces the train function anew; a later one without it goes on with the same function.

    Pass it on all ranks or on none. It appends lines, for runs that start again, so give each new
    run a new folder.

    Args:
      log_dir: The folder; in a cluster the same on all ranks, shared by all hosts or not.
      sample_every: The number of steps from one sample to the next.
      tensorboard: Whether samples and epochs are written as TensorBoard's scalars too, in
        `tensorboard/rankN`.

    Raises:
      ValueError: `sample_every` is below 1.
      OSError: The folder cannot be written when training begins.

    >>> import pathlib, tempfile, numpy as np, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> arrays = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
    >>> _ = model.fit(*arrays, batch_size=4, verbose=0, callbacks=[Telemetry(folder)])
    >>> sorted(path.name for path in folder.iterdir())
    ['manifest.json', 'rank0.jsonl', 'tensorboard']
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], sample_every: int = 10, tensorboard: bool = True
    ) -> None:
        super().__init__()
        if isinstance(sample_every, bool) or int(sample_every) != sample_every or sample_every < 1:
            raise ValueError(
                f"`sample_every` must be a whole number of steps, at least 1, but received "
                f"{sample_every!r}. Use sample_every=10."
            )
        self.log_dir = pathlib.Path(log_dir)
        self.sample_every = int(sample_every)
        self.tensorboard = tensorboard
        self._pipeline: Any = None
        self._place: AbstractPlace | None = None
        self._data: Any = None
        self._is_training = False

    def watch(self, data: Any, pipeline: Any, place: AbstractPlace | None = None) -> None:
        """Sets the data of the next training; `fit` calls it.

        Args:
          data: The data.
          pipeline: The pipeline, if the data is one.
          place: The place in the data from which a Checkpoint goes on, if there is one.

        >>> import numpy as np, tempfile, tfdp
        >>> batches = tfdp.data.pipeline(np.ones(8), 4, seed=1)
        >>> Telemetry(tempfile.mkdtemp()).watch(batches, batches)
        """
        self._data, self._pipeline, self._place = data, pipeline, place

    # ---- the training

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the files, and lets the train function record."""
        strategy = self.model.distribute_strategy
        replicas = replicas_of(strategy)
        self._processes = processes_of(strategy)
        self._rank, self._world_size = _place(self._processes)
        self._recorder = None if replicas is None else self._attached(strategy)
        self._files = LogFiles(self.log_dir, self._rank, self.tensorboard)
        if self._rank == 0:
            rank_status.tell(log_dir=os.path.abspath(self.log_dir))
            write_manifest(self.log_dir / "manifest.json", model=self.model, data=self._data)
        self._data = None  # it may be large
        self._files.line(
            "start",
            format=FORMAT,
            rank=self._rank,
            world_size=self._world_size,
            sample_every=self.sample_every,
            **described(self.model, self.params),
        )
        self._is_training = True
        self._began = time.perf_counter()
        self._step: int | None = None
        self._late: Mapping[int, int] = self._processes.staleness()
        self._waits: list[float] = []
        self._sample_seconds: list[float] = []
        compiler = compiler_of(strategy)
        self._reads_all_losses = compiler is None
        self._clock: StepClock | CompiledClock = (
            StepClock(self._recorder, self._pipeline, self.model)
            if compiler is None
            else CompiledClock(compiler, self.model)
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the files."""
        seconds = round(time.perf_counter() - self._began, 6)
        self._files.line("end", step=self._step or 0, seconds=seconds)
        self._files.close()
        self._is_training = False
        self._clock.stop()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        # A Checkpoint has the epoch's batches numbered from its place on, Keras from 0 on.
        self._steps_of_epoch = 0 if self._place is None else self._place.steps_in_epoch
        if self._step is None:  # only now all callbacks have restored their states
            self._step = self._steps_before(epoch)
        self._epoch, self._epoch_began = epoch, time.perf_counter()
        self._applied = applied_steps(self.model.optimizer)
        self._dropped_before = self._dropped_so_far()
        self._clock.start()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the epoch's logs, and the late ranks."""
        seconds = round(time.perf_counter() - self._epoch_began, 6)
        late = self._processes.staleness()
        if late:
            logged = {
                str(number): count - self._late.get(number, 0) for number, count in late.items()
            }
            self._late = late
        self._files.line(
            "epoch",
            epoch=epoch,
            step=self._step,
            seconds=seconds,
            logs=logs or {},
            **({"staleness": logged} if late else {}),
        )
        if self._rank == 0 and logs:
            scalars = {name: value for name, value in logs.items() if np.ndim(value) == 0}
            numbers = {f"epoch_{name}": float(value) for name, value in scalars.items()}
            self._files.scalars(epoch, numbers)
        # All ranks have as many samples, so all compare; too few are kept for the next epoch.
        if self._processes.world_size > 1 and len(self._waits) >= LEAST_SAMPLES:
            self._name_straggler(self._processes)
            self._waits, self._sample_seconds = [], []

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock of a validation within the training."""
        self._test_began = time.perf_counter()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the duration of the validation."""
        if not self._is_training:
            return
        seconds = round(time.perf_counter() - self._test_began, 6)
        self._files.line("validation", epoch=self._epoch, seconds=seconds)

    # ---- a step

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins a sample if one is due."""
        assert self._step is not None
        due = (self._step + self.model.steps_per_execution) // self.sample_every
        self._clock.begin(sample=due > self._step // self.sample_every)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the step's line."""
        logs = logs or {}
        line = self._clock.end()
        line.setdefault("steps", self._steps_until(batch))
        assert self._step is not None
        self._step += line["steps"]
        self._steps_of_epoch += line["steps"]
        is_sample = "compute_seconds" in line or "gradient_norm" in line
        reads_loss = self._reads_all_losses or is_sample
        if reads_loss and np.ndim(logs.get("loss", ())) == 0:
            line["loss"] = float(logs["loss"])
        line |= self._loss_scale(line["steps"]) | self._dropped()
        if "compute_seconds" in line:
            waits = (
                line.get(f"{where}_seconds", 0.0) for where in ("first_bucket_wait", "meeting")
            )
            if self._recorder is not None:
                self._waits.append(sum(waits))
                self._sample_seconds.append(line["seconds"])
        self._files.line("step", step=self._step, epoch=self._epoch, **line)
        if is_sample:
            self._files.scalars(self._step, _scalars(line))

    def _steps_before(self, epoch: int) -> int:
        """Returns the steps of earlier trainings, and of the epoch that this one goes on with."""
        before = self._files.last_step_before(epoch)
        if before is None:
            kept = 0 if self._place is None else self._place.steps
            return kept or steps_before(self.model.optimizer)
        if self._place is not None or self._pipeline is None:
            return before + self._steps_of_epoch
        # One that was restored by hand.
        whole, left = self._pipeline.batches_per_epoch, self._pipeline.batches_left
        is_epoch = left is not None and whole == self.params.get("steps")
        return before + (whole - left if is_epoch else 0)

    def _steps_until(self, batch: int) -> int:
        """Returns the steps of an execution that no recorder counts.

        Keras counts the last execution as if it were whole, so the steps that were asked for bound
        it.
        """
        known = self.params.get("steps") or batch + 1
        return min(batch + 1, known) - self._steps_of_epoch

    def _loss_scale(self, steps: int) -> dict[str, float]:
        optimizer = self.model.optimizer
        before, self._applied = self._applied, applied_steps(optimizer)
        if self._applied is None or before is None:
            return {}
        scale = float(optimizer.dynamic_scale.numpy())
        skipped = steps - (self._applied - before)
        # The number is below 0 if one step applies the optimizer more than once.
        return {"loss_scale": scale} | ({"skipped_steps": skipped} if skipped >= 0 else {})

    def _dropped(self) -> dict[str, int]:
        """Returns how many examples did not count since the line before."""
        dropped = self._dropped_so_far()
        before, self._dropped_before = self._dropped_before, dropped
        return {} if dropped is None or before is None else {"dropped_examples": dropped - before}

    def _dropped_so_far(self) -> int | None:
        replicas = replicas_of(self.model.distribute_strategy)
        return None if replicas is None else replicas.dropped_examples()

    def _name_straggler(self, processes: ProcessGroup) -> None:
        seconds = float(np.median(self._sample_seconds)) if self._sample_seconds else 0.0
        posts = processes.all_gather("telemetry", [self._waits, host_name(), seconds])
        waits = [post.value[0] for post in posts]
        samples = min(map(len, waits))
        # All ranks take rank 0's step time, as the report does: with its own, each could name other
        # ranks.
        for found in stragglers([row[:samples] for row in waits], posts[0].value[2]):
            host = posts[found.rank].value[1]
            self._files.line(
                "straggler",
                rank=found.rank,
                host=host,
                epoch=self._epoch,
                late_seconds=round(found.late_seconds, 6),
                samples=found.samples,
            )
            if self._rank == 0:
                logging.getLogger("tfdp").warning(
                    "Rank %d on %s keeps the others waiting: in epoch %d it came %.0f ms "
                    "after them, in the median of %d samples. See what else runs there, and "
                    "whether its input is slower.",
                    found.rank,
                    host,
                    self._epoch,
                    1e3 * found.late_seconds,
                    found.samples,
                )

    def _attached(self, strategy: Any) -> Recorder:
        """Returns the model's recorder, and makes a train function that writes to it."""
        recorder = Recorder.of(self.model) or Recorder(strategy.extended.worker_devices)
        recorder.attach(self.model)
        if getattr(self.model.train_function, "recorder", None) is not recorder:
            self.model.make_train_function(force=True)
        return recorder


def _place(processes: ProcessGroup) -> tuple[int, int | None]:
    """Returns this process' rank, and the number of ranks.

    Without a strategy of tfdp over processes only the rank may be known, from the environment. Each
    process has a file of its own all the same.
    """
    if processes.cluster_size > 1:
        return processes.cluster_rank, processes.cluster_size
    rank = cluster.rank_in_environment()
    return rank or 0, None if rank else 1


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    """Returns a step's numbers, one level deep."""
    flat = {name: value for name, value in line.items() if not isinstance(value, dict)}
    for name, values in line.items():
        if isinstance(values, dict):
            flat |= {f"{name}_{key}": value for key, value in values.items()}
    return {name: float(value) for name, value in flat.items()}
