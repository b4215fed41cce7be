"""The hooks of Keras' epoch iterator, for feeds (pipelines), with and without a strategy.

Keras asks a dataset for its number of batches once, and starts iterators as it likes. A feed counts
its epochs itself, and the first epoch after a restart may be short, so Keras is told the number of
batches at each epoch.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.callbacks import Checkpoint
from tfdp.callbacks.checkpoint.data_place import AbstractPlace
from tfdp.communication.replicas import (
    BatchShard,
    FullBatchShard,
    TurnBatchShard,
    compiler_of,
    is_of_tfdp,
    processes_of,
    replicas_of,
    sharder_of,
)
from tfdp.data.feed import AbstractFeed, call_of_trainer, trainer_knows_feeds
from tfdp.keras._keras import (
    EpochIterator,
    TensorFlowTrainer,
    TFEpochIterator,
    make_class_weight_map_fn,
    strategy_of_iterator,
)
from tfdp.keras._tensorflow import PerReplica, PerReplicaSpec, value_specs


class _Call(NamedTuple):
    """A call of `fit`, `evaluate` or `predict`.

    Attributes:
      takes_shards: Whether it is `predict`, with Keras' own `make_predict_function`.
      place: The place in the data of a `fit`, if a checkpoint keeps it.
      trains: Whether the data that are distributed now are those that it trains on.
      endless: Whether `steps_per_epoch` ends the epochs, and the passes over the data go on.
    """

    takes_shards: bool = False
    place: AbstractPlace | None = None
    trains: bool = False
    endless: bool = False


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


@contextlib.contextmanager
def during(method: str, model: Any, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Tells the hooks of iterators, within the context, which method of the model makes them.

    Args:
      method: "fit", "evaluate" or "predict".
      model: The model.
      checkpoint: What keeps checkpoints, if a callback does.
    """
    own = getattr(type(model), "make_predict_function", None)
    predicts = method == "predict" and own is vars(TensorFlowTrainer)["make_predict_function"]
    call = _Call(predicts, None if checkpoint is None else checkpoint.place)
    well = False
    with trainer_knows_feeds(call):
        try:
            yield
            well = True
        finally:
            if checkpoint is not None:
                checkpoint.close(well)


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


@hook(TFEpochIterator, "__init__")
def make_epoch_iterator(original: Callable[..., Any], self: Any, **kwargs: Any) -> None:
    """Makes an iterator over a feed, which is endless if `steps_per_epoch` ends the epochs.

    With `class_weight` the feed itself weighs the examples of each share, and what was distributed
    already is distributed again, with weights. Elements that are no batches are not sharded: all
    replicas take each of them whole, as one device does.
    """
    feed = kwargs.get("x")
    mapped = getattr(feed, "mapped", None)
    if mapped is not None and kwargs.get("class_weight"):
        weights = kwargs.pop("class_weight")
        key = tuple(sorted(weights.items()))
        feed = kwargs["x"] = mapped(make_class_weight_map_fn(weights), key)
    strategy = kwargs.get("distribute_strategy")
    trains = "class_weight" in kwargs  # those of validation are made within `fit`, too
    self._tfdp_takes_turns = trains and takes_turns(strategy)
    if self._tfdp_takes_turns and mapped is not None:
        raise ValueError(
            "Ranks that train apart take parts of batches in turn, so `fit` must be given the "
            "dataset itself, but received one that is distributed already. Leave out "
            "`strategy.experimental_distribute_dataset`."
        )
    whole = replicas_of(strategy) is not None and _is_of_no_batches(feed)
    if whole and not self._tfdp_takes_turns:
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
    self._tfdp_gives_shards = _call().takes_shards
    turns = processes_of(strategy).turns if self._tfdp_takes_turns else None
    if turns is not None:  # all ranks must shuffle alike, to take parts of the same batches
        keras.utils.set_random_seed(turns.seed)
    endless = turns is not None and bool(kwargs.get("steps_per_epoch"))
    endless = endless and _has_known_length(kwargs["x"])
    with trainer_knows_feeds(_call()._replace(trains=trains, endless=endless)):
        original(self, **kwargs)
    if self._tfdp_takes_turns:
        self._num_batches = None


def _has_known_length(data: Any) -> bool:
    """Returns whether data have a known number of batches; Keras ends an epoch with others."""
    if isinstance(data, tf.data.Dataset):
        return int(data.cardinality()) > 0
    if isinstance(data, keras.utils.PyDataset):
        return False
    return all(len(getattr(each, "shape", ())) and each.shape[0] for each in tf.nest.flatten(data))


@hook(TFEpochIterator, "_get_iterator")
def get_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Makes `predict`, which takes batches before its function does, take them as `BatchShard`s."""
    dataset = original(self)
    strategy = strategy_of_iterator(self)
    if not self._tfdp_gives_shards or replicas_of(strategy) is None:
        return dataset
    return _BatchShards(dataset, strategy)


class _BatchShards:
    """A distributed dataset whose iterators give `BatchShard`s where shares' places are known."""

    def __init__(self, dataset: Any, strategy: Any) -> None:
        self._dataset = dataset
        self._strategy = strategy

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        for share in sharder_of(self._strategy).shards(iterator):
            yield known_alike(share, iterator.element_spec)


@hook(EpochIterator, "_enumerate_iterator")
def enumerate_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Tells Keras the number of batches of the epoch that begins, which may not be the first's.

    A training that goes on from a checkpoint gets what is left of its epoch.
    """
    feed = getattr(self, "_tfdp_feed", None)
    if feed is not None:
        self._num_batches = feed.batches_left
    elif getattr(self, "_tfdp_takes_turns", False):
        self._num_batches = None  # which is known when all parts are taken
    place, given = _call().place, lambda: _length(self)
    steps = original(self) if place is None else place.executions(original, self, given)
    return _counted(self, feed, steps) if feed is not None and self._tfdp_counts else steps


def _length(iterator: Any) -> int | None:
    """Returns how many batches the next epoch of Keras' iterator takes; None: not known."""
    left = iterator._num_batches
    if left and iterator.steps_per_epoch and iterator._current_iterator is not None:
        left -= iterator._steps_seen  # an iterator goes on where the epoch before has ended
    return min((n for n in (iterator.steps_per_epoch, left) if n), default=None)


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
    in_turn = getattr(self, "_tfdp_takes_turns", False)
    if (feed is None and not in_turn) or self.steps_per_epoch:
        original(self)


def takes_turns(strategy: Any) -> bool:
    """Returns whether `fit` takes parts of batches, which end where others have taken the rest."""
    turns = processes_of(strategy).turns if is_of_tfdp(strategy) else None
    return turns is not None and turns.parts > 1


def known_alike(share: Any, element_spec: Any) -> Any:
    """Returns shares of which a trace does not know their numbers of rows.

    Nor does it know other sizes but those that the data declare where each replica reads its own
    examples.

    Args:
      share: A `BatchShard` of all local replicas, or what is no batch.
      element_spec: The specification of the data.
    """
    if not isinstance(share, BatchShard) or isinstance(share, FullBatchShard):
        return share
    leaves = tf.nest.flatten(share.rows)
    declared = (
        tf.nest.flatten(element_spec)
        if isinstance(share, TurnBatchShard)
        else itertools.repeat(None)
    )
    found = [_known_alike(leaf, spec) for leaf, spec in zip(leaves, declared, strict=False)]
    return share._replace(rows=tf.nest.pack_sequence_as(share.rows, found))


def _known_alike(leaf: Any, declared: Any) -> Any:
    if not isinstance(leaf, PerReplica):
        return leaf
    specs = [tf.type_spec_from_value(value) for value in leaf.values]
    if declared is not None:
        is_of_each = isinstance(declared, PerReplicaSpec)
        specs = value_specs(declared) if is_of_each else [declared] * len(specs)
    return _Known(leaf.values, [_of_any_length(spec) for spec in specs])


class _Known(PerReplica):
    """The replicas' shares of a tensor, of which a trace knows what specifications say."""

    def __init__(self, values: Sequence[Any], specs: Sequence[tf.TypeSpec]) -> None:
        super().__init__(values)
        self._specs = specs

    def __tf_tracing_type__(self, context: Any) -> Any:
        return PerReplicaSpec(*self._specs).__tf_tracing_type__(context)


def _of_any_length(spec: Any) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec)) and spec.shape.rank:
        return type(spec)([None, *spec.shape[1:]], spec.dtype)
    return spec
