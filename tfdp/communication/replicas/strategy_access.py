"""The way from a `tf.distribute.Strategy` to its replicas, processes and sharded variables."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.replicas import one_device
from tfdp.communication.replicas.one_process import OneProcess
from tfdp.communication.replicas.process_group import ProcessGroup
from tfdp.communication.replicas.replicas_protocol import Replicas


class OfPartials(Protocol):
    """A function for one device that replicas run together: see `HasReplicas.of_partials`."""

    def on_replica(self, index: int, tensors: Sequence[tf.Tensor]) -> object:
        """Writes one local replica's call into the graph that is being built; all replicas must."""

    def on_all(self, parts: Sequence[Sequence[tf.Tensor]]) -> object:
        """Runs it, given of each tensor what each local replica has."""

    def on_one(self, tensors: Sequence[tf.Tensor]) -> object:
        """Runs it outside of replicas, given whole tensors: the first process' hold for all."""


class HasReductionOrder(abc.ABC):
    """The base class of `strategy.extended` in the strategies of tfdp, which sum in some order."""

    @abc.abstractmethod
    def order_of_sums(self) -> dict[str, object]:
        """Returns what decides the last bits of sums (topology, buckets, engine, threads); JSON."""

    @abc.abstractmethod
    def take_order_of_sums(self, kept: Mapping[str, object]) -> list[str]:
        """Sums in a kept order in all that is traced from now on, on as many replicas as then.

        Args:
          kept: What `order_of_sums` returned, in another process maybe.

        Returns:
          In words what differs and cannot be taken. Nothing where the replicas are others.
        """


class HasReplicas(HasReductionOrder):
    """The base class of `strategy.extended` in the strategies of tfdp, which have `Replicas`.

    Attributes:
      replicas: The strategy's replicas.
    """

    replicas: Replicas

    @abc.abstractmethod
    def shards(self, iterator: Iterator[object]) -> Iterator[object]:
        """Returns an iterator of global batches as a step of Keras' trainer takes it: `BatchShard`.

        What does not come from a distributed dataset is returned as it is.
        """

    @abc.abstractmethod
    def run_whole(self, step: Callable[[object], object], data: object) -> object:
        """Runs a step eagerly on the whole batch, in each process, as one device does.

        Args:
          step: The step.
          data: A `BatchShard` of all local replicas, or what is no batch.
        """

    @abc.abstractmethod
    def of_partials(
        self,
        function: Callable[[Sequence[tf.Tensor]], object],
        specs: Sequence[tf.TensorSpec],
        are_partials: Sequence[bool],
    ) -> OfPartials:
        """Returns a function for one device, as replicas run it that have partials of its tensors.

        Args:
          function: The function of a list of tensors. It is traced here, and not run.
          specs: The specifications of the tensors.
          are_partials: Of each whether replicas have partials of it; else all have the whole.
        """

    @abc.abstractmethod
    def graph_calls(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Returns what makes a context for calls of graphs that hold replicas' programs.

        The graphs are optimized as the programs are.
        """

    @abc.abstractmethod
    def in_scope(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in the strategy's scope, outside of what is being traced."""


class CompiledProgram(Protocol):
    """A function for one device that is compiled for all: see `CompilesPrograms.program`."""

    def run(self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]]) -> object:
        """Runs calls with the same shapes one after the other; returns what the last one does."""

    def run_ahead(self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]]) -> object:
        """Compiles what `run` would run, of shapes alone; returns what is then known of it."""

    def explain(self) -> object:
        """Returns what is known of the program of the latest call; None: it was not called yet."""


class CompilesPrograms(HasReductionOrder):
    """The base class of `strategy.extended` where a compiler makes the replicas' programs.

    Everything outside of such programs is as on one device, which has no `Replicas`.

    Attributes:
      processes: The processes that have the devices.
    """

    processes: ProcessGroup

    @abc.abstractmethod
    def program(self, function: Callable[[object], object]) -> CompiledProgram:
        """Returns a function for one device as all devices run it."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until the devices have computed what programs were called for."""

    @abc.abstractmethod
    def of_one_device(self) -> tf.distribute.Strategy:
        """Returns a strategy that compiles programs for the first of its devices alone."""

    @abc.abstractmethod
    def at_home(self, variables: Iterable[object]) -> contextlib.AbstractContextManager[None]:
        """Brings to every process the values of TensorFlow's variables of which each has parts.

        All processes must enter the context together; within, each may read them by itself. What
        graphs a process makes of them within must not run after it.
        """


def compiler_of(strategy: tf.distribute.Strategy | None) -> CompilesPrograms | None:
    """Returns the part of a strategy that compiles programs of all its devices.

    None: its replicas run programs that are made otherwise; or the calling thread traces one.

    >>> import tfdp
    >>> compiler_of(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])) is None
    True
    """
    extended = getattr(strategy, "extended", None)
    if one_device.is_traced() or not isinstance(extended, CompilesPrograms):
        return None
    return extended


def sums_of(strategy: tf.distribute.Strategy) -> HasReductionOrder:
    """Returns the part of a strategy of tfdp that knows in which order it sums.

    >>> import tfdp
    >>> sums_of(tfdp.DataParallelStrategy(["CPU:0"])).order_of_sums()["topology"]
    'Native()'
    """
    assert isinstance(strategy.extended, HasReductionOrder), "it is a strategy of tfdp"
    return strategy.extended


def is_of_tfdp(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy is one of tfdp's; not while the calling thread traces a program.

    >>> import tfdp
    >>> is_of_tfdp(tfdp.DataParallelStrategy(["CPU:0"])), is_of_tfdp(tf.distribute.get_strategy())
    (True, False)
    """
    return (
        isinstance(getattr(strategy, "extended", None), HasReductionOrder)
        and not one_device.is_traced()
    )


def sharder_of(strategy: tf.distribute.Strategy) -> HasReplicas:
    """Returns the part of a strategy of tfdp that shards batches for Keras' trainer.

    Raises:
      TypeError: The strategy is not one of tfdp's.

    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    >>> batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(3).batch(3))
    >>> shard = next(sharder_of(strategy).shards(iter(batches)))
    >>> [rows.numpy().tolist() for rows in strategy.experimental_local_results(shard.rows)]
    [[0, 1], [2]]
    """
    if not isinstance(strategy.extended, HasReplicas):
        raise TypeError(
            "Batches are sharded by a strategy of tfdp, but received "
            f"{type(strategy).__name__}. Use tfdp.DataParallelStrategy()."
        )
    return strategy.extended


def replicas_of(strategy: tf.distribute.Strategy | None) -> Replicas | None:
    """Returns the replicas of a strategy; None if the strategy is not one of tfdp's.

    None, too, while the calling thread traces a program as on one device.

    >>> import tfdp
    >>> replicas_of(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])).num_replicas
    2
    >>> replicas_of(tf.distribute.get_strategy()) is None
    True
    """
    extended = getattr(strategy, "extended", None)
    if one_device.is_traced() or not isinstance(extended, HasReplicas):
        return None
    return extended.replicas


def processes_of(strategy: tf.distribute.Strategy | None) -> ProcessGroup:
    """Returns the processes of a strategy; `OneProcess` if the strategy is not one of tfdp's.

    >>> processes_of(tf.distribute.get_strategy()).world_size
    1
    """
    owner = replicas_of(strategy) or compiler_of(strategy)
    return OneProcess() if owner is None else owner.processes


class HasLayout:
    """A variable of TensorFlow whose layout a compiler chooses. Its class must inherit this one.

    Nobody asks other variables for these attributes: those of `tf.distribute` would read values.

    Attributes:
      path: The path that Keras knows it by; else its name.
      follows: The weight that an optimizer keeps it for, whose layout it has; None: none.
    """

    path = ""
    follows: object = None


def sharding_of(variable: object) -> Sharding | None:
    """Returns the sharding of a variable of TensorFlow or Keras; None: it is replicated.

    >>> import keras
    >>> sharding_of(tf.Variable([1.0, 2.0])) is sharding_of(keras.Variable([1.0, 2.0])) is None
    True
    """
    for held in (variable, getattr(variable, "value", None)):
        sharding = getattr(held, "sharding", None)
        if isinstance(sharding, Sharding):
            return sharding
    return None


def can_be_sharded(variable: tf.Variable, replicas: int) -> bool:
    """Returns whether a variable has numbers to be updated, and an axis with a part for each.

    >>> can_be_sharded(tf.Variable([1.0, 2.0]), 2), can_be_sharded(tf.Variable([1, 2]), 2)
    (True, False)
    >>> can_be_sharded(tf.Variable([1.0, 2.0]), 3)
    False
    """
    shape = tf.TensorShape(variable.shape)
    if not (tf.as_dtype(variable.dtype).is_floating and shape.is_fully_defined()):
        return False
    return 0 not in shape and max(shape, default=0) >= replicas
