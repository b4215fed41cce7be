"""Pipelines: datasets of global batches, the same for any number of replicas."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdp.data import pipeline_state as states
from tfdp.data import unreadable_examples
from tfdp.data.epoch_plan import num_batches
from tfdp.data.feed import AbstractFeed, check_asker
from tfdp.data.make_shards import make_shards, tuned, without_padding_rows
from tfdp.data.pipeline_options import PipelineOptions, checked_length
from tfdp.data.pipeline_state import identify
from tfdp.data.progress import PipelineProgress, View
from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractSource, AbstractStreamSource
from tfdp.data.sources.cached import cached
from tfdp.data.tally import Tally, iterate

Structure = Any


class Pipeline(tf.data.Dataset, AbstractFeed):
    """A dataset of global batches that knows how far it is; `tfdp.data.pipeline` makes it.

    An iterator begins at the training's place, the next batch that no step has taken. So if you
    leave a loop in the middle of an epoch, the next loop continues with the rest of it, and so does
    a loop after `restore`. `evaluate` and `predict` begin at the first batch and change nothing.

    Under a strategy of tfdp each replica receives its share, and `state` counts the batches that
    steps took. Under another strategy, except in `fit`, and after `map`, `take` and the other
    methods of datasets, it is a plain dataset: prefetched batches then count as taken.

    Attributes:
      source: The source of the examples.
      pipeline_options: A `PipelineOptions`.
      progress: The count of batches taken, and of the seconds that steps waited for them.

    >>> import numpy as np, tfdp
    >>> batches = tfdp.data.pipeline(np.arange(5), 2, seed=1, shuffle=False)
    >>> isinstance(batches, Pipeline), batches.global_batch_size, batches.batches_per_epoch
    (True, 2, 3)
    >>> next(iter(batches)).numpy()
    array([0, 1])
    >>> batches.is_fresh, batches.batches_left, batches.progress.place
    (False, 2, (0, 2))
    >>> [batch.numpy().tolist() for batch in batches]  # the rest of the epoch
    [[2, 3], [4]]
    """

    def __init__(
        self,
        source: AbstractSource,
        options: PipelineOptions,
        *,
        progress: PipelineProgress | None = None,
        view: View | None = None,
    ) -> None:
        if options.cache and isinstance(source, AbstractIndexedSource):
            source = cached(source, options.memory_bytes)
        self.source = source
        self.pipeline_options = options
        self.progress = progress or PipelineProgress(
            checked_length(source, options),
            options.global_batch_size,
            options.drop_remainder,
        )
        self._view = view = view or View()
        self._views: dict[Any, Pipeline] = {}
        self._shares: dict[tuple[int, range], tf.data.Dataset] = {}
        # Iterators of the other views count in a tally that nobody reads.
        self._tally = self.progress.tally if view.counts and not view.from_start else Tally()
        self._batches = self.shards(1, range(1))
        # Other strategies and `map` start from the plain dataset.
        self._plain = tuned(self._tally.observe(self._batches), options)
        super().__init__(tf.data.experimental.to_variant(self._plain))

    def __iter__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__iter__()
        return iterate(self._batches, self, self._tally)

    # ---- what tf.data asks of a dataset

    @property
    def element_spec(self) -> Structure:
        """The spec of a global batch."""
        return self._batches.element_spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._plain]

    def cardinality(self) -> tf.Tensor:
        """Returns the batches of a whole epoch, wherever the next iterator begins; int64."""
        check_asker()
        number: int = tf.data.INFINITE_CARDINALITY
        if not self._view.endless:
            whole = self.batches_per_epoch
            number = tf.data.UNKNOWN_CARDINALITY if whole is None else whole
        return tf.constant(number, tf.int64)

    def map(self, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        """Returns an ordinary dataset of a function's results for each batch; see `tf.data`."""
        check_asker()  # `class_weight` is such a function
        return super().map(*args, **kwargs)

    # ---- where the training is

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches of a whole epoch; None if not known before an epoch was read."""
        options, length = self.pipeline_options, self.progress.length
        if length is None:
            return None
        return num_batches(length, options.global_batch_size, options.drop_remainder)

    def state(self) -> dict[str, Any]:
        """Returns the place of the training, to be saved with the weights: small, JSON.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(6), 2, seed=1)
        >>> _ = next(iter(batches))
        >>> state = batches.state()
        >>> state["epoch"], state["position"]
        (0, 2)
        """
        epoch, position = self.progress.place
        return states.make(epoch, position, states.identity(self.source, self.pipeline_options))

    def restore(self, state: Mapping[str, Any] | str) -> None:
        """Moves to the place of `state`, where new iterators begin.

        Args:
          state: The result of `state()`, or its JSON text, from any number of replicas.

        Raises:
          ValueError: `state` is no such state, or that of another source, seed or order.

        Cost: none with random access. A stream is read up to the place, and a line in the log
        (logger `tfdp`, level INFO) says how long that took.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(6), 2, seed=1, shuffle=False)
        >>> batches.restore({**batches.state(), "position": 4})
        >>> next(iter(batches)).numpy()
        array([4, 5])
        """
        identity = states.identity(self.source, self.pipeline_options)
        epoch, position = states.checked(state, identity, self.progress.length)
        self.progress.move(epoch, position)

    def identify(self) -> dict[str, Any]:
        """Identifies this input for `tfdp.write_manifest`, as JSON.

        Returns:
          `source`, `described`, `examples` (None: not known yet) and `element_spec`; `identity`:
          the source's fingerprint, which `state` has too; `options`, with the name of `map_fn`; for
          arrays a `checksum`; `covers`: in words, what the checksum, or else the identity, is made
          from.

        Cost: up to 64 MiB of each array are read, some 0.2 s; nothing of other sources.

        >>> import numpy as np, tfdp
        >>> found = tfdp.data.pipeline(np.arange(6), 2, seed=1).identify()
        >>> found["source"], found["examples"], found["covers"]
        ('ArraySource', 6, 'names, dtypes and shapes; all bytes')
        """
        return identify(self.source, self.pipeline_options, self.progress.length)

    @property
    def global_batch_size(self) -> int:
        """The number of examples of a batch, all replicas together."""
        return self.pipeline_options.global_batch_size

    @property
    def tally(self) -> Tally:
        """The tally in which iterators count the batches that steps take.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(4), 2, seed=1)
        >>> batches.tally.read()[0], next(iter(batches)).shape[0], batches.tally.read()[0]
        (0, 2, 1)
        """
        return self._tally

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was trained, nor restored."""
        return self.progress.is_fresh

    @property
    def batches_left(self) -> int | None:
        """The number of batches of the next iterator, or None if it is endless or not known yet."""
        if self._view.endless:
            return None
        return self.batches_per_epoch if self._view.from_start else self.progress.batches_left

    def begin_at(self, epoch: int, steps_per_epoch: int | None = None) -> None:
        """Goes to the beginning of an epoch as Keras counts them.

        Args:
          epoch: The number of the epoch, from 0.
          steps_per_epoch: The argument of `fit`; None: one of Keras' epochs is one of the
            pipeline's.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(6), 2, seed=1)
        >>> batches.begin_at(epoch=2, steps_per_epoch=2)
        >>> batches.progress.place
        (1, 2)
        """
        whole = self.batches_per_epoch
        if steps_per_epoch is None or whole is None:
            self.progress.move(epoch, 0)
        else:
            epoch, batch = divmod(epoch * steps_per_epoch, whole)
            self.progress.move(epoch, batch * self.pipeline_options.global_batch_size)

    def alike_on_all_ranks(self) -> dict[str, Any]:
        """Returns, by name, the values that must be equal on all ranks, as JSON.

        >>> import numpy as np, tfdp
        >>> tfdp.data.pipeline(np.arange(6), 2, seed=1).alike_on_all_ranks()["batches in an epoch"]
        3
        """
        return self.state() | {
            "global_batch_size": self.global_batch_size,
            "drop_remainder": self.pipeline_options.drop_remainder,
            "batches in an epoch": self.batches_per_epoch,
        }

    # ---- views of it

    def endless(self) -> Pipeline:
        """Returns an endless view: after an epoch the next one follows; progress is shared.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(3), 2, seed=1, shuffle=False)
        >>> [batch.numpy().tolist() for batch, _ in zip(batches.endless(), range(3))]
        [[0, 1], [2], [0, 1]]
        """
        return self._kept_view("endless", endless=True)

    def from_start(self) -> Pipeline:
        """Returns a view of one epoch from its first batch, always in the order of epoch 0.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(3), 2, seed=1, shuffle=False)
        >>> _ = next(iter(batches))
        >>> [batch.numpy().tolist() for batch in batches.from_start()]
        [[0, 1], [2]]
        """
        endless = self._view.endless
        return self._kept_view(("from start", endless), from_start=True, endless=endless)

    def uncounted(self) -> Pipeline:
        """Returns a view from the training's place, in which only `took` counts batches.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(6), 2, seed=1)
        >>> view = batches.uncounted()
        >>> _ = next(iter(view))
        >>> view.took(1)
        >>> batches.progress.place
        (0, 2)
        """
        return self._kept_view("uncounted", counts=False)

    def took(self, batches: int) -> None:
        """Counts batches of an `uncounted` view, up to the end of the epoch."""
        self.progress.take(batches=batches)

    def with_share_fn(self, share_fn: Callable[..., Any], key: Any) -> Pipeline:
        """Returns a view with a function of each replica's share of a batch, row by row.

        Args:
          share_fn: A function, called as `Dataset.map` calls it.
          key: A hashable object; a later call with an equal one returns the same view.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(2), 2, seed=1, shuffle=False)
        >>> next(iter(batches.with_share_fn(lambda share: -share, "negated"))).numpy()
        array([ 0, -1])
        """
        return self._kept_view(key, share_fn=share_fn)

    def _kept_view(self, key: Any, **changes: Any) -> Pipeline:
        # A new view is traced anew, and `evaluate` asks for the same one after every epoch.
        if key not in self._views:
            view = dataclasses.replace(self._view, **changes)
            self._views[key] = Pipeline(
                self.source, self.pipeline_options, progress=self.progress, view=view
            )
        return self._views[key]

    # ---- the batches

    def for_replicas(self, num_replicas: int, ranks: range) -> tf.data.Dataset:
        """Returns the shares of some replicas, batch by batch and rank by rank.

        Args:
          num_replicas: The number of replicas in all processes.
          ranks: The ranks whose shares are wanted.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(6), 3, seed=1, shuffle=False)
        >>> [share.numpy().tolist() for share in batches.for_replicas(2, range(2))]
        [[0, 1], [2], [3, 4], [5]]
        """
        shares = self.shards(num_replicas, ranks)
        return shares if num_replicas == 1 else without_padding_rows(shares)

    def shards(self, num_replicas: int, ranks: range) -> tf.data.Dataset:
        """Returns shares as `for_replicas` does; for several replicas with places and padding rows.

        `epoch_plan.ShardPlan` describes a place.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(4), 3, seed=1, shuffle=False)
        >>> [place.numpy().tolist() for _, place in batches.shards(2, range(1, 2))]
        [[1, 1, 2, 3], [1, 0, 1, 1]]
        """
        wanted = (num_replicas, ranks)
        if wanted not in self._shares:
            self._shares[wanted] = make_shards(
                self.source,
                self.pipeline_options,
                self.progress,
                self._view,
                num_replicas,
                ranks,
            )
        return self._shares[wanted]

    def say_what_is_read(self, world_size: int) -> None:
        """Logs once, for a stream, that each process reads all of it.

        >>> import tfdp
        >>> batches = tfdp.data.pipeline(tf.data.Dataset.range(4), 2, seed=1)
        >>> batches.say_what_is_read(world_size=2)
        >>> batches.progress.said_what_is_read
        True
        """
        if isinstance(self.source, AbstractStreamSource) and not self.progress.said_what_is_read:
            self.progress.said_what_is_read = True
            logging.getLogger("tfdp").warning(
                "Each of %d processes reads all of %s: it can only be read in order. Arrays, "
                "TFRecord files and tfds.data_source are read in part.",
                world_size,
                self.source.describe(),
            )

    def end(self) -> None:
        """Notes that a step has found no batch left.

        >>> import tfdp
        >>> source = tf.data.Dataset.range(4).filter(lambda x: x < 3)  # of unknown length
        >>> batches = tfdp.data.pipeline(source, 2, seed=1)
        >>> _ = list(batches)
        >>> batches.end()
        >>> batches.progress.place
        (1, 0)
        """
        self.progress.end()

    def explain(self, error: Exception) -> Exception:
        """Returns the error that names the example that could not be read, where `error` does not.

        Args:
          error: The error that was raised while the next batches were made.

        Cost: reads the examples that were to come, up to the one that cannot be read.

        >>> import numpy as np, tfdp
        >>> batches = tfdp.data.pipeline(np.arange(4), 2, seed=1)
        >>> error = tf.errors.InvalidArgumentError(None, None, "an example is damaged")
        >>> batches.explain(error) is error  # an array can always be read
        True
        """
        place = (0, 0) if self._view.from_start else self.progress.place
        return unreadable_examples.explained(error, self.source, self.pipeline_options, place)
