"""The hooks of `fit`, `evaluate` and `predict`: all ranks start alike, with the same callbacks."""

import contextlib
import inspect
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.callbacks import Checkpoint, InputMonitor, Telemetry
from tfdp.callbacks.checkpoint.data_place import PipelinePlace
from tfdp.callbacks.checkpoint.replayed_place import ReplayedPlace
from tfdp.communication import collectives
from tfdp.communication.replicas import is_of_tfdp, processes_of, replicas_of
from tfdp.compression.exchange import exchange_of
from tfdp.data.feed import AbstractFeed
from tfdp.keras import learning_rate_check, scope_errors
from tfdp.keras._keras import TensorFlowTrainer
from tfdp.keras.nested_optimizers import optimizers_of
from tfdp.keras.optimizer import local_sgd_rounds, optimizer_hooks
from tfdp.keras.trainer import epoch_iterators, rank_agreement
from tfdp.keras.trainer.replica_check import CopiesCompared
from tfdp.keras.trainer.step_agreement import EpochsCompared
from tfdp.synchronization.weight_averaging import WeightAveraging


@hook(TensorFlowTrainer, "fit")
def fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Trains after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("fit", original, self, args, kwargs)


@hook(TensorFlowTrainer, "evaluate")
def evaluate(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluates after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("evaluate", original, self, args, kwargs)


@hook(TensorFlowTrainer, "predict")
def predict(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Predicts after a comparison of all ranks; only rank 0 shows a progress bar."""
    return _run("predict", original, self, args, kwargs)


def _run(name: str, original: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    if name == "fit" and is_of_tfdp(model.distribute_strategy):
        if replicas_of(model.distribute_strategy) is not None:
            learning_rate_check.prepare(model, bound.arguments)
        _watch_epochs(model, bound.arguments)
        _begin_where_others_are(model, bound.arguments)
    checkpoint = _arrange(name, bound.arguments)
    with (
        _left_on_errors(name, model),
        epoch_iterators.explained(bound.arguments),
        epoch_iterators.during(name, model, checkpoint),
    ):
        return _run_arranged(name, original, model, bound)


@contextlib.contextmanager
def _left_on_errors(name: str, model: Any) -> Iterator[None]:
    """Lets the others go on without this rank, if it trains apart and its `fit` raises."""
    try:
        yield
    except BaseException as error:
        strategy = model.distribute_strategy
        turns = processes_of(strategy).turns if is_of_tfdp(strategy) else None
        if name == "fit" and turns is not None:
            turns.fail(error)
        raise


def _begin_where_others_are(model: Any, arguments: dict[str, Any]) -> None:
    """Leaves out epochs of a `fit` that other ranks, which do not wait for this one, have had.

    Raises:
      ValueError: A callback goes on with a training from a file, of all ranks together.
    """
    turns = processes_of(model.distribute_strategy).turns
    if turns is None or turns.parts == 1:
        return
    kinds = (Checkpoint, keras.callbacks.BackupAndRestore)
    for callback in epoch_iterators.callbacks_in(arguments):
        if isinstance(callback, kinds):
            raise ValueError(
                f"{type(callback).__name__} keeps the place of all ranks in a training together, "
                "but the ranks train apart, each at its own place. A rank that starts again takes "
                "the weights that the others have; keep weights with "
                "`keras.callbacks.ModelCheckpoint`, which rank 0 writes."
            )
        if getattr(callback, "restore_best_weights", False):
            raise ValueError(
                f"{type(callback).__name__}(restore_best_weights=True) would end `fit` with other "
                "weights on each rank, for the ranks train apart, and each has an epoch of its own "
                "that was best. Leave it out, and load what rank 0 has written with "
                "`keras.callbacks.ModelCheckpoint(path, save_best_only=True)`."
            )
    begun, first, epochs = turns.begin(), arguments["initial_epoch"], arguments["epochs"]
    arguments["initial_epoch"] = epochs if begun is None else min(first + begun, epochs)


def _watch_epochs(model: Any, arguments: dict[str, Any]) -> None:
    """Puts what happens at the end of each epoch of a `fit` before its callbacks, or after them."""
    given = arguments.get("callbacks")
    flat = epoch_iterators.callbacks_in(arguments)
    first: list[Any] = []
    if replicas_of(model.distribute_strategy) is not None:
        first = [*_callbacks_of_rounds(model, flat), CopiesCompared()]
    own = [*first, EpochsCompared()]
    kinds = tuple(type(callback) for callback in own)  # of an earlier `fit` with this list
    ordered = [*first, *(each for each in flat if not isinstance(each, kinds)), own[-1]]
    if isinstance(given, keras.callbacks.CallbackList):
        for callback in own:
            callback.set_params(given.params)
            callback.set_model(model)
        given.callbacks[:] = ordered
    else:
        arguments["callbacks"] = ordered


def _run_arranged(
    name: str, original: Callable[..., Any], model: Any, bound: inspect.BoundArguments
) -> Any:
    replicas = replicas_of(model.distribute_strategy)
    within_fit = bound.arguments.get("kwargs", {}).get("_use_cached_eval_dataset")
    if within_fit and replicas is not None:
        _end_epoch(model)  # which is validated before its callbacks are called
    if not is_of_tfdp(model.distribute_strategy):
        if name == "fit":
            scope_errors.warn_of_forgotten(model)
        return original(*bound.args, **bound.kwargs)
    processes = processes_of(model.distribute_strategy)
    if processes.cluster_rank != 0:
        bound.arguments["verbose"] = 0
    if processes.world_size == 1:  # there is no other rank to compare with
        return original(*bound.args, **bound.kwargs)
    # Within `fit`, validation calls `evaluate` with data that `fit` has compared already.
    if not within_fit:
        here = {
            "`tf.config.run_functions_eagerly`": tf.config.functions_run_eagerly(),
            "whether TensorFloat-32 is enabled": (
                tf.config.experimental.tensor_float_32_execution_enabled()
            ),
            "the seed of `keras.utils.set_random_seed`": collectives.global_seed(),
            "whether an error was caught since the last call": processes.error is not None,
        }
        alike = rank_agreement.of_arguments(bound.arguments) | rank_agreement.of_model(model)
        if replicas is not None:  # a compiler's devices begin with rank 0's values
            alike |= rank_agreement.of_variables(model)
        processes.compare(f"`{name}`", here | alike)
        processes.adopt_random_states()
    if name == "fit":
        trained = weakref.ref(model)
        processes.settings[collectives.STOP_TRAINING] = lambda: getattr(
            trained(), "stop_training", False
        )
    with processes.explained():
        return original(*bound.args, **bound.kwargs)


def _arrange(method: str, arguments: dict[str, Any]) -> Checkpoint | None:
    """Prepares the feeds and callbacks among the arguments of a method of Keras' trainer.

    Feeds for evaluation and prediction are read from their start. In `fit` callbacks that watch
    the input are told of it, and a fresh feed begins at the epoch at which training begins.

    Args:
      method: "fit", "evaluate" or "predict".
      arguments: The method's arguments, by name; changed in place.

    Returns:
      The callback that keeps checkpoints, for `epoch_iterators.during`, if there is one.
    """
    if method != "fit":
        if isinstance(arguments["x"], AbstractFeed):
            arguments["x"] = arguments["x"].from_start()
        return None
    if isinstance(arguments["validation_data"], AbstractFeed):
        arguments["validation_data"] = arguments["validation_data"].from_start()
    feed = arguments["x"]
    given_data = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    given_data = [part for part in given_data if part is not None]
    given = epoch_iterators.callbacks_in(arguments)
    checkpoint = _checkpoint_among(given, feed)
    data = feed if len(given_data) == 1 else tuple(given_data)
    pipeline = feed if isinstance(feed, AbstractFeed) else None
    for callback in given:
        if isinstance(callback, InputMonitor):
            callback.watch(data, pipeline)
        elif isinstance(callback, Telemetry):
            callback.watch(data, pipeline, None if checkpoint is None else checkpoint.place)
    # It comes last, so that it keeps and restores what the other callbacks have changed.
    ordered = sorted(given, key=lambda callback: isinstance(callback, Checkpoint))
    if isinstance(feed, AbstractFeed) and feed.is_fresh:
        # It comes first, so that the other callbacks see where the feed begins.
        ordered = [_FirstEpoch(feed, arguments["steps_per_epoch"]), *ordered]
    if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
        given[:] = ordered
    elif ordered:
        arguments["callbacks"] = ordered
    return checkpoint


def _checkpoint_among(callbacks: Sequence[Any], data: Any) -> Checkpoint | None:
    """Returns the Checkpoint among callbacks, which is told of the data and of the others.

    Args:
      callbacks: The callbacks of `fit`.
      data: What `fit` is given as `x`.

    Raises:
      ValueError: There are two, or one that keeps a training in another way; or ranks train apart.
    """
    keeping = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    backups = [c for c in callbacks if isinstance(c, keras.callbacks.BackupAndRestore)]
    if backups and not keeping:
        logging.getLogger("tfdp").warning(
            "BackupAndRestore begins an epoch anew (with `save_freq=N` batches come twice), and "
            "forgets the seeds of random layers. "
            "`tfdp.callbacks.Checkpoint(folder, every_steps=1000)` goes on after the last step "
            "that it has kept, with the same bits."
        )
    if len(keeping) + len(backups) > 1 and keeping:
        kinds = [type(callback).__name__ for callback in (*keeping, *backups)]
        raise ValueError(
            f"`fit` must be given one callback at most that goes on with a training, but received "
            f"{' and '.join(kinds)}: it goes on from one place. Keep one Checkpoint, with more "
            "files by `keep=`; weights for other uses by `keras.callbacks.ModelCheckpoint`."
        )
    if not keeping:
        return None
    place = PipelinePlace(data) if isinstance(data, AbstractFeed) else ReplayedPlace(data)
    keeping[0].watch(place, callbacks)
    return keeping[0]


def _callbacks_of_rounds(model: Any, given: list[Any]) -> list[keras.callbacks.Callback]:
    """Returns the callback that ends rounds with the epochs of a `fit`; none without rounds.

    It must come before the others, so that they see one set of weights.

    Args:
      model: The model to be trained, under a strategy of tfdp.
      given: The callbacks that `fit` is given.

    Raises:
      ValueError: One of them moves each replica's own averages into its weights.
    """
    exchange = exchange_of(model.distribute_strategy)
    if exchange.synchronization is None:
        return []
    swaps = any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in given)
    if swaps and exchange.replicas_differ:
        raise ValueError(
            "Under a `synchronization` each replica has moving averages of its own, which no "
            "callback may swap in, but `fit` received SwapEMAWeights. Leave it out: with "
            "`use_ema` the weights with which `fit` ends are the mean of the averages."
        )
    return [_Rounds()]


def _end_epoch(model: Any) -> None:
    """Ends the rounds that are open; all processes must call it."""
    strategy = model.distribute_strategy
    if exchange_of(strategy).synchronization is not None:
        optimizer_hooks.end_rounds(strategy, model, with_epoch=True)


class _Rounds(keras.callbacks.Callback):
    """A callback that ends rounds with the epoch, and warns of those that never are full."""

    async_safe = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Warns of rounds that are longer than an epoch."""
        strategy = self.model.distribute_strategy
        optimizer_hooks.begin(strategy, self.model)
        synchronization = exchange_of(strategy).synchronization
        steps = (self.params or {}).get("steps")
        if not steps or strategy.rank != 0 or not isinstance(synchronization, WeightAveraging):
            return
        mixes = synchronization.mixings(strategy.extended.replicas.num_replicas) is not None
        told = (
            "%r mixes less than once an epoch, which has %d updates and ends with the mean of all."
            if mixes
            else "A round of %r has more updates than an epoch, which has %d and ends each round: "
            "replicas synchronize once an epoch."
        )
        for one in optimizers_of(self.model):
            updates = steps // (one.gradient_accumulation_steps or 1)
            if updates < synchronization.every:
                logging.getLogger("tfdp").warning(told, synchronization, updates)
                return

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends what epochs leave open, and averages what Keras has just written into weights."""
        optimizer_hooks.end_rounds(self.model.distribute_strategy, self.model)
        local_sgd_rounds.end_averages(self.model)
        optimizer_hooks.tell_updates(self.model.distribute_strategy, self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends the rounds that are open."""
        _end_epoch(self.model)


class _FirstEpoch(keras.callbacks.Callback):
    """A callback that begins a fresh feed at the first epoch: `initial_epoch`, or a backup's."""

    async_safe = True

    def __init__(self, feed: AbstractFeed, steps_per_epoch: int | None) -> None:
        super().__init__()
        self._feed = feed
        self._steps_per_epoch = steps_per_epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._feed.is_fresh and epoch > 0:
            self._feed.begin_at(epoch, self._steps_per_epoch)
