"""The bases of all synchronizations, and of those that average weights: rounds, and their ends."""

import abc
from typing import Any, ClassVar


class Synchronization(abc.ABC):
    """The method in place of a sum of gradients that each step waits for.

    >>> from tfdp.synchronization import Delayed, Synchronization
    >>> isinstance(Delayed(), Synchronization), Delayed().replicas_differ
    (True, False)
    """

    #: Whether replicas update by themselves, and so have their own weights between updates.
    replicas_differ: ClassVar[bool]

    #: Whether an update waits for the gradients of all replicas.
    replicas_wait: ClassVar[bool] = True

    #: Whether each process of a cluster is a group of its own, which no step waits for.
    ranks_apart: ClassVar[bool] = False

    #: Whether an update must be part of a step that replicas run; others are refused.
    needs_step: ClassVar[bool] = False

    #: Whether it has outer gradients, which can be compressed.
    has_outer_optimizer: ClassVar[bool] = False

    #: Why no compression goes with it, and which method to use; unused with outer gradients.
    no_compression: ClassVar[str] = ""

    #: Why no `shard` goes with it.
    no_shard: ClassVar[str]

    def num_counted(self, num_ranks: int) -> int:
        """Returns the number of ranks that an update waits for, whose gradients count: here all.

        >>> from tfdp.synchronization import Delayed
        >>> Delayed().num_counted(4)
        4
        """
        return num_ranks

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describes the synchronization for a comparison of ranks, as JSON.

        >>> from tfdp.synchronization import LocalSGD
        >>> LocalSGD(every=4, warmup_steps=100).describe()
        {'name': 'LocalSGD', 'every': 4, 'warmup_steps': 100}
        """


class WeightAveraging(Synchronization):
    """The times at which replicas that train by themselves agree on weights, and the method.

    The updates between two synchronizations are a round. A round has `every` updates at most: it
    also ends with each epoch of `fit`, and when a program calls `strategy.synchronize`. At its end
    replicas compute the mean of their weights, in float32 at least. Without an outer optimizer they
    continue from that mean. With one, its gradient is the weights at which the round began minus
    the mean; it updates those weights, and the replicas continue from them.

    The variables may be synchronized in `fragments`, each at its own time within the `every`
    updates. A method may also mix each replica's weights with those of some others (`mixings`);
    then only an epoch's end, or `strategy.synchronize`, ends a round.

    Attributes:
      every: The number of updates in a round, or before each mixing.
      fragments: The number of parts in which the variables are synchronized.
      overlap: With an outer optimizer: the weight of a replica's own variables, if the next step
        computes while the sum that ends a round is on its way. None: a step waits for the sum.
      warmup_steps: The number of first updates after each of which the replicas synchronize.

    >>> from tfdp.synchronization import LocalSGD
    >>> local = LocalSGD(every=4)
    >>> local.replicas_differ, local.every, local.warmup_steps
    (True, 4, 0)
    """

    replicas_differ: ClassVar[bool] = True
    no_compression: ClassVar[str] = (
        "`compression` must have gradients to compress, and of all synchronizations DiLoCo alone "
        "sends some. Leave `compression` out, or use DiLoCo(every=10, outer_optimizer=lambda: "
        "keras.optimizers.SGD(1.0)), which is LocalSGD(every=10)."
    )
    no_shard: ClassVar[str] = (
        "`shard` needs one set of weights after each update, and within a round each replica has "
        "its own."
    )

    every: int
    warmup_steps: int = 0
    fragments: int = 1
    overlap: float | None = None

    def make_outer_optimizer(self) -> Any:
        """Returns a new `keras.optimizers.Optimizer` that ends rounds; None: the mean ends them.

        Each optimizer of a model has its own outer optimizer, made in the strategy's scope.

        >>> from tfdp.synchronization import DiLoCo
        >>> DiLoCo(every=4).make_outer_optimizer().nesterov
        True
        """
        return None

    def mixings(self, num_replicas: int) -> tuple[tuple[int, ...], ...] | None:
        """Returns the mixings, which take turns; None: rounds end in the mean of all replicas.

        A mixing is the distances of neighbours: replica i takes the mean of its own weights and of
        those of the replicas i - d, modulo their number, for each distance d.

        >>> from tfdp.synchronization import LocalSGD
        >>> LocalSGD(every=4).mixings(8) is None
        True
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Describes the synchronization; see `Synchronization.describe`."""
        told = {"name": type(self).__name__, "every": self.every}
        if self.warmup_steps:
            told["warmup_steps"] = self.warmup_steps
        if self.fragments > 1:
            told["fragments"] = self.fragments
        if self.overlap is not None:
            told["overlap"] = self.overlap
        outer = self.make_outer_optimizer()
        if outer is not None:
            config = outer.get_config()
            told["outer_optimizer"] = {"class_name": type(outer).__name__} | {
                name: repr(value) for name, value in sorted(config.items()) if name != "name"
            }
        return told


def check_count(
    owner: str, name: str, value: Any, at_least: int, example: str, of: str = "updates"
) -> None:
    """Checks a number of updates, or of something else.

    Raises:
      ValueError: It is not a whole number of at least `at_least`.
    """
    if type(value) is not int or value < at_least:
        raise ValueError(
            f"`{name}` of {owner} must be a whole number of {of}, at least {at_least}, but "
            f"received {value!r}. Use {example}."
        )
