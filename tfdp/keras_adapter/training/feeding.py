"""Feeds in `fit`, `evaluate` and `predict`, under a strategy and without one.

Keras asks a dataset for its number of batches once and starts iterators as it likes. A feed counts
its epochs itself, and the first after a restart may be short: so Keras is told at each epoch.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks import InputMonitor, Telemetry
from tfdp.data.feed import AbstractFeed, trainer_knows_feeds
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    EpochIterator,
    TensorFlowTrainer,
    TFEpochIterator,
    make_class_weight_map_fn,
)
from tfdp.replicas import replicas_of

# Whether it is `predict`, and Keras' own function of it, that makes an iterator.
_PREDICTING: contextvars.ContextVar[bool] = contextvars.ContextVar("predicting", default=False)

# What Keras has where there is none.
_DEFAULT = tf.distribute.get_strategy()


def callbacks_in(arguments: dict[str, Any]) -> list[Any]:
    """The callbacks among the arguments of `fit`, one by one."""
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return tf.nest.flatten(callbacks) if callbacks else []


def arrange(method: str, arguments: dict[str, Any]) -> None:
    """Puts what Keras shall see of feeds in the place of what the user gave.

    Args:
      method: "fit", "evaluate" or "predict".
      arguments: Its own, by name; changed.
    """
    if method != "fit":
        if isinstance(arguments["x"], AbstractFeed):
            arguments["x"] = arguments["x"].from_start()
        return
    if isinstance(arguments["validation_data"], AbstractFeed):
        arguments["validation_data"] = arguments["validation_data"].from_start()
    feed, callbacks = arguments["x"], arguments["callbacks"]
    given_data = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    given_data = [part for part in given_data if part is not None]
    given = callbacks_in(arguments)
    for callback in given:
        if isinstance(callback, (InputMonitor, Telemetry)):
            data = feed if len(given_data) == 1 else tuple(given_data)
            callback.watch(data, feed if isinstance(feed, AbstractFeed) else None)
    if not isinstance(feed, AbstractFeed) or not feed.is_fresh:
        return
    # First, so that the others see the place.
    first = _FirstEpoch(feed, arguments["steps_per_epoch"])
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, first)
    else:
        arguments["callbacks"] = [first, *given]


@contextlib.contextmanager
def during(method: str, model: Any) -> Iterator[None]:
    """Within it `method` of the model makes its iterators."""
    own = getattr(type(model), "make_predict_function", None)
    predicts = method == "predict" and own is vars(TensorFlowTrainer)["make_predict_function"]
    token = _PREDICTING.set(predicts)
    try:
        with trainer_knows_feeds():
            yield
    finally:
        _PREDICTING.reset(token)


@contextlib.contextmanager
def explained(arguments: dict[str, Any]) -> Iterator[None]:
    """Raises what the feeds among the arguments make of an error that may come from them."""
    try:
        yield
    except tf.errors.OpError as error:
        for feed in (arguments["x"], arguments.get("validation_data")):
            said = feed.explain(error) if isinstance(feed, AbstractFeed) else error
            if said is not error:
                raise said from error
        raise


class _FirstEpoch(keras.callbacks.Callback):
    """Begins with the order of `initial_epoch`, or of where BackupAndRestore goes on."""

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
    """A feed goes on over the ends of its epochs where Keras counts steps; classes are weighted."""
    feed = kwargs.get("x")
    if isinstance(feed, AbstractFeed):
        if kwargs.get("steps_per_epoch"):
            feed = feed.endless()
        weights = kwargs.pop("class_weight", None)
        if weights:
            key = tuple(sorted(weights.items()))
            feed = feed.with_share_fn(make_class_weight_map_fn(weights), key)
        strategy = kwargs["distribute_strategy"]
        self._tfdp_counts = False
        if replicas_of(strategy) is None and not _is_default(strategy):
            # It would fetch batches beforehand, and Keras one to learn its shape.
            feed, self._tfdp_counts = feed.uncounted(), True
        # It shuffles by itself; Keras would warn of its own default.
        kwargs |= {"x": feed, "shuffle": False}
        self._tfdp_feed = feed
    self._tfdp_gives_cuts = _PREDICTING.get()
    original(self, **kwargs)


@hook(TFEpochIterator, "_get_iterator")
def get_iterator(original: Callable[..., Any], self: Any) -> Any:
    """`predict` takes batches by itself, before its function does: with what is known of them."""
    dataset = original(self)
    strategy = self._distribute_strategy
    if not self._tfdp_gives_cuts or replicas_of(strategy) is None:
        return dataset
    return _Cuts(dataset, strategy)


class _Cuts:
    """A distributed dataset whose iterators give `Cut`s where they can."""

    def __init__(self, dataset: Any, strategy: Any) -> None:
        self._dataset = dataset
        self._strategy = strategy

    def __iter__(self) -> Any:
        return self._strategy.extended.cuts(iter(self._dataset))


@hook(EpochIterator, "_enumerate_iterator")
def enumerate_iterator(original: Callable[..., Any], self: Any) -> Any:
    """The number of batches is that of the epoch that begins, not of the first."""
    feed = getattr(self, "_tfdp_feed", None)
    if feed is not None:
        self._num_batches = feed.batches_left
    steps = original(self)
    return _counted(self, feed, steps) if feed is not None and self._tfdp_counts else steps


def _counted(iterator: Any, feed: AbstractFeed, steps: Iterator[Any]) -> Iterator[Any]:
    """Counts what each execution has trained when Keras asks for the next."""
    for step in steps:
        left = feed.batches_left
        yield step
        executed = iterator.steps_per_execution
        feed.took(executed if left is None else min(left, executed))


def _is_default(strategy: tf.distribute.Strategy) -> bool:
    return type(strategy) is type(_DEFAULT)


@hook(EpochIterator, "_interrupted_warning")
def interrupted_warning(original: Callable[..., Any], self: Any) -> None:
    """The end of an epoch whose length nobody knew beforehand is no shortage of data."""
    feed = getattr(self, "_tfdp_feed", None)
    if feed is not None:
        feed.end()
    if feed is None or self.steps_per_epoch:
        original(self)
