"""The interface of a source of global batches to a strategy and Keras' trainer."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdp.data.tally import Tally

# What the hooks that give a feed's batches to Keras' trainer know of its call; None without them.
_CALL: contextvars.ContextVar[object] = contextvars.ContextVar("call", default=None)
_TRAINER = "keras.src.trainers."


class AbstractFeed(abc.ABC):
    """A `tf.data.Dataset` of global batches that begins where the training is.

    `Pipeline` is one. The strategy asks for the replicas' shares of the batches. The hooks of
    Keras' trainer say which epoch begins, and what was trained.
    """

    # ---- the batches

    @property
    @abc.abstractmethod
    def global_batch_size(self) -> int:
        """The number of examples of a batch, all replicas together."""

    @property
    @abc.abstractmethod
    def batches_left(self) -> int | None:
        """The number of batches of the next iterator; None: not known, or endless."""

    @property
    @abc.abstractmethod
    def tally(self) -> Tally:
        """The tally in which iterators count the batches that steps take of `shards`."""

    @abc.abstractmethod
    def shards(self, num_replicas: int, ranks: range) -> tf.data.Dataset:
        """Returns the shares of `ranks`, batch by batch, and each batch's shares rank by rank.

        For several replicas each element is a pair (a share, its `sharding.share_place`), and a
        share without examples holds a padding row, an example of its batch. For one replica the
        element is the batch.
        """

    @abc.abstractmethod
    def cardinality(self) -> tf.Tensor:
        """Returns the number of batches of a whole epoch, as tf.data writes it; int64."""

    @abc.abstractmethod
    def alike_on_all_ranks(self) -> dict[str, Any]:
        """Returns, by name, what all ranks' feeds must have in common; JSON."""

    @abc.abstractmethod
    def say_what_is_read(self, world_size: int) -> None:
        """Logs if each process reads more than its own replicas' examples."""

    @abc.abstractmethod
    def explain(self, error: Exception) -> Exception:
        """Returns the error to be raised in the place of an error of its iterators."""

    # ---- where the training is

    @property
    @abc.abstractmethod
    def is_fresh(self) -> bool:
        """Whether nothing was trained, nor restored."""

    @abc.abstractmethod
    def begin_at(self, epoch: int, steps_per_epoch: int | None) -> None:
        """Goes to the beginning of an epoch as Keras counts them."""

    @abc.abstractmethod
    def took(self, batches: int) -> None:
        """Counts batches as trained."""

    @abc.abstractmethod
    def end(self) -> None:
        """Notes that a step has found no batch left."""

    # ---- views of it

    @abc.abstractmethod
    def endless(self) -> AbstractFeed:
        """Returns the same feed, going on with the next epoch where one ends."""

    @abc.abstractmethod
    def from_start(self) -> AbstractFeed:
        """Returns an epoch from its first batch, whatever was trained."""

    @abc.abstractmethod
    def uncounted(self) -> AbstractFeed:
        """Returns the same feed, where only `took` counts batches as trained."""

    @abc.abstractmethod
    def with_share_fn(self, share_fn: Callable[..., Any], key: Any) -> AbstractFeed:
        """Returns the feed with a function of each replica's share; kept for an equal `key`."""


@contextlib.contextmanager
def trainer_knows_feeds(call: object) -> Iterator[None]:
    """Declares that Keras' trainer runs with hooks that read feeds, and what they know of it."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def call_of_trainer() -> Any:
    """Returns what hooks know of the call of Keras' trainer that runs; None: nothing."""
    return _CALL.get()


def check_asker() -> None:
    """Checks who asks a feed for its number of batches, or maps it, as Keras' trainer does first.

    Raises:
      RuntimeError: Keras' trainer asks, without the hooks of tfdp. It would then evaluate from the
        middle of an epoch, and count the wrong batches.
    """
    asker = sys._getframe(2).f_globals.get("__name__", "")
    if asker.startswith(_TRAINER) and _CALL.get() is None:
        raise RuntimeError(
            "`fit`, `evaluate` and `predict` must know of pipelines, to tell them where an epoch "
            "begins, but no strategy of tfdp was made before. Make one, on one device too: "
            '`strategy = tfdp.DataParallelStrategy(devices=["CPU:0"])`.'
        )
