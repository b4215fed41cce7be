"""The hooks for feeds (pipelines) in `fit`, `evaluate` and `predict`, with and without a strategy.

Keras asks a dataset for its number of batches once, and starts iterators as it likes. A feed counts
its epochs itself, and the first epoch after a restart may be short, so Keras is told the number of
batches at each epoch.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.callbacks import Checkpoint, InputMonitor, Telemetry
from tfdp.callbacks.checkpoint.place import AbstractPlace
from tfdp.communication.replicas import compiler_of, replicas_of, sharder_of
from tfdp.data.feed import AbstractFeed, call_of_trainer, trainer_knows_feeds
from tfdp.keras._keras import (
    EpochIterator,
    TensorFlowTrainer,
    TFEpochIterator,
    make_class_weight_map_fn,
    strategy_of_iterator,
)
from tfdp.keras.trainer import checkpointing, predict_shapes


class _Call(NamedTuple):
    """A call of `fit`, `evaluate` or `predict`.

    Attributes:
      takes_shards: Whether it is `predict`, with Keras' own `make_predict_function`.
      place: The place in the data of a `fit`, if a checkpoint keeps it.
    """

    takes_shards: bool = False
    place: AbstractPlace | None = None


def _call() -> _Call:
    return call_of_trainer() or _Call()


# The strategy that Keras uses where there is none.
_DEFAULT = tf.distribute.get_strategy()


def callbacks_in(arguments: dict[str, Any]) -> list[Any]:
    """Returns the callbacks among the arguments of `fit`, as a flat list."""
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return tf.nest.flatten(callbacks) if callbacks else []


def arrange(method: str, arguments: dict[str, Any]) -> Checkpoint | None:
    """Prepares the feeds and callbacks among the arguments of a method of Keras' trainer.

    Feeds for evaluation and prediction are read from their start. In `fit` callbacks that watch
    the input are told of it, and a fresh feed begins at the epoch at which training begins.

    Args:
      method: "fit", "evaluate" or "predict".
      arguments: The method's arguments, by name; changed in place.

    Returns:
      The callback that keeps checkpoints, for `during`, if there is one.
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
    given = callbacks_in(arguments)
    checkpoint = checkpointing.checkpoint_among(given, feed)
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


@contextlib.contextmanager
def during(method: str, model: Any, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Tells the hooks of iterators, within the context, which method of the model makes them.

    Args:
      method: "fit", "evaluate" or "predict".
      model: The model.
      checkpoint: What `arrange` returned.
    """
    own = getattr(type(model), "make_predict_function", None)
    predicts = method == "predict" and own is vars(TensorFlowTrainer)["make_predict_function"]
    call = _Call(predicts, None if checkpoint is None else checkpoint.place)
    with trainer_knows_feeds(call), checkpointing.closing(checkpoint):
        yield


@contextlib.contextmanager
def explained(arguments: dict[str, Any]) -> Iterator[None]:
    """Raises a feed's own error in place of TensorFlow's, if a feed explains that."""
    try:
        yield
    except tf.errors.OpError as error:
        for feed in (arguments["x"], arguments.get("validation_data")):
            said = feed.explain(error) if isinstance(feed, AbstractFeed) else error
            if said is not error:
                raise said from error
        raise


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


@hook(TFEpochIterator, "__init__")
def make_epoch_iterator(original: Callable[..., Any], self: Any, **kwargs: Any) -> None:
    """Makes an iterator over a feed, which is endless if `steps_per_epoch` ends the epochs.

    With `class_weight` the feed itself weighs the examples of each share, and what was distributed
    already is distributed again, with weights. Elements that are no batches are not cut: all
    replicas take each of them whole, as one device does.
    """
    feed = kwargs.get("x")
    mapped = getattr(feed, "mapped", None)
    if mapped is not None and kwargs.get("class_weight"):
        weights = kwargs.pop("class_weight")
        key = tuple(sorted(weights.items()))
        feed = kwargs["x"] = mapped(make_class_weight_map_fn(weights), key)
    strategy = kwargs.get("distribute_strategy")
    if replicas_of(strategy) is not None and _is_of_no_batches(feed):
        kwargs["distribute_strategy"] = _DEFAULT
    if isinstance(feed, AbstractFeed):
        if kwargs.get("steps_per_epoch"):
            feed = feed.endless()
        weights = kwargs.pop("class_weight", None)
        if weights:
            key = tuple(sorted(weights.items()))
            feed = feed.with_share_fn(make_class_weight_map_fn(weights), key)
        strategy = kwargs["distribute_strategy"]
        self._tfdp_counts = False
        takes_each = compiler_of(strategy) is not None or _is_default(strategy)
        if replicas_of(strategy) is None and not takes_each:
            # Another strategy fetches batches beforehand, and Keras one to learn the shape, so a
            # batch that was read must not count as trained.
            feed, self._tfdp_counts = feed.uncounted(), True
        # A feed shuffles by itself; Keras would warn of its own default, `shuffle=True`.
        kwargs |= {"x": feed, "shuffle": False}
        self._tfdp_feed = feed
    self._tfdp_gives_cuts = _call().takes_shards
    original(self, **kwargs)


@hook(TFEpochIterator, "_get_iterator")
def get_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Makes `predict`, which takes batches before its function does, take them as `BatchShard`s."""
    dataset = original(self)
    strategy = strategy_of_iterator(self)
    if not self._tfdp_gives_cuts or replicas_of(strategy) is None:
        return dataset
    return _BatchShards(dataset, strategy)


class _BatchShards:
    """A distributed dataset whose iterators give `BatchShard`s where shares' places are known."""

    def __init__(self, dataset: Any, strategy: Any) -> None:
        self._dataset = dataset
        self._strategy = strategy

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        for share in sharder_of(self._strategy).cuts(iterator):
            yield predict_shapes.known_alike(share, iterator.element_spec)


@hook(EpochIterator, "_enumerate_iterator")
def enumerate_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Tells Keras the number of batches of the epoch that begins, which may not be the first's.

    A training that goes on from a checkpoint gets what is left of its epoch.
    """
    feed = getattr(self, "_tfdp_feed", None)
    if feed is not None:
        self._num_batches = feed.batches_left
    steps = checkpointing.executions(_call().place, original, self)
    return _counted(self, feed, steps) if feed is not None and self._tfdp_counts else steps


def _counted(iterator: Any, feed: AbstractFeed, steps: Iterator[Any]) -> Iterator[Any]:
    """Counts the batches of each execution as trained when Keras asks for the next execution."""
    for step in steps:
        left = feed.batches_left
        yield step
        executed = iterator.steps_per_execution
        feed.took(executed if left is None else min(left, executed))


def _is_of_no_batches(data: Any) -> bool:
    """Returns whether data are elements without an axis of examples, such as numbers."""
    return isinstance(data, tf.data.Dataset) and all(
        getattr(spec, "shape", None) is None or spec.shape.rank == 0
        for spec in tf.nest.flatten(data.element_spec)
    )


def _is_default(strategy: tf.distribute.Strategy) -> bool:
    return type(strategy) is type(_DEFAULT)


@hook(EpochIterator, "_interrupted_warning")
def interrupted_warning(original: Callable[..., Any], self: Any) -> None:
    """Warns of missing data as Keras does, unless a feed's epoch of unknown length has ended."""
    feed = getattr(self, "_tfdp_feed", None)
    if feed is not None:
        feed.end()
    if feed is None or self.steps_per_epoch:
        original(self)
