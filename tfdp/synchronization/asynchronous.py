"""Asynchronous local SGD: each rank exchanges its change by itself, and waits for no other."""

import dataclasses
from typing import Any, ClassVar

from tfdp.synchronization.weight_averaging import Synchronization, check_count


@dataclasses.dataclass(frozen=True)
class Asynchronous(Synchronization):
    """Lets each rank train by itself, and exchange its change with the weights' homes.

    The weights are divided into a shard for each rank, which is its home. A rank

    1. updates its weights with its own optimizer, `every` times;
    2. sends each home its change since it last took weights, w <- w + rate * change / n for n
       ranks: the homes add it at once, in the order of arrival;
    3. waits, if it has ended more than `staleness` rounds more than the slowest rank that trains;
    4. takes the homes' current weights, and goes on from them.

    So ranks wait for each other nowhere else, neither in a step nor at an epoch's end: losses,
    metrics and what layers keep are each rank's own. The batches of `fit` are divided into n parts,
    of which each rank takes the next one that is free: a slow rank takes fewer. At the end of `fit`
    all ranks wait for each other, and go on with the same weights. A rank that is lost takes
    nothing along but what it has not sent; the others go on.

    With one rank this is training on one device, to rounding, if the outer rate is 1 and the outer
    momentum 0. Several devices of one process are one rank: they sum their gradients in each step.

    Source: Liu et al.: Asynchronous Local-SGD Training for Language Modeling, arXiv 2401.09135
    (2024), algorithm 2; Ho et al.: More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server (2013), for the bound. Deviations: a change counts 1/n, so that n ranks that
    are equally fast end a round with their mean; the paper's homes are one server.

    Cost: each rank sends and receives the weights' bytes once a round, (n-1)/n of them to and from
    other ranks, in float32. Memory: on the host, for each rank, 1 + 1/n times the weights, 1/n more
    with momentum.

    Args:
      every: The number of updates in a round, at least 1.
      staleness: How many rounds a rank may have ended more than the slowest, at least 1. With a
        rank that is always slow choose at least the rounds by which it falls behind in a `fit`.
      outer_learning_rate: The rate at which homes add changes, above 0.
      outer_momentum: The Nesterov momentum of the homes, at least 0 and below 1.

    Raises:
      ValueError: A number is out of range.

    >>> Asynchronous(every=16)
    Asynchronous(every=16, staleness=4, outer_learning_rate=1.0, outer_momentum=0.0)
    """

    replicas_differ: ClassVar[bool] = False  # those of one process do not
    ranks_apart: ClassVar[bool] = True
    needs_step: ClassVar[bool] = True
    no_compression: ClassVar[str] = (
        "`Asynchronous` sends changes of weights in float32, and no gradients. Leave one of them "
        "out, or send less by a larger `every`."
    )
    no_shard: ClassVar[str] = (
        "Under `Asynchronous` each rank trains by itself, with weights and slots of its own, of "
        "which no other rank can hold a part."
    )

    every: int
    staleness: int = 4
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        check_count("Asynchronous", "every", self.every, 1, "Asynchronous(every=16)")
        if type(self.staleness) is not int or self.staleness < 1:
            raise ValueError(
                "`staleness` of Asynchronous must be a whole number of rounds, at least 1, but "
                f"received {self.staleness!r}. Use Asynchronous(every=16, staleness=4); ranks that "
                "are never apart are LocalSGD(every=16)."
            )
        for name, value, fits, range_ in (
            ("outer_learning_rate", self.outer_learning_rate, lambda x: x > 0, "above 0"),
            ("outer_momentum", self.outer_momentum, lambda x: 0 <= x < 1, "from 0 to below 1"),
        ):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and value < float("inf") and fits(value)):
                raise ValueError(
                    f"`{name}` of Asynchronous must be a number {range_}, but received {value!r}. "
                    "Leave it out for the plain sum of changes."
                )

    def describe(self) -> dict[str, Any]:
        """Describes the synchronization; see `Synchronization.describe`.

        >>> Asynchronous(every=16).describe()["staleness"]
        4
        """
        return {"name": type(self).__name__} | dataclasses.asdict(self)
