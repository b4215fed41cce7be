"""Delayed gradients: their sum travels while later steps compute, and is applied then."""

import dataclasses
from typing import Any, ClassVar

from tfdp.synchronization.weight_averaging import Synchronization, check_count


@dataclasses.dataclass(frozen=True)
class Delayed(Synchronization):
    """Applies the sum of a step's gradients `steps` updates later (delayed, or pipelined, SGD).

    No step waits for the sum of its own gradients. In step t:

    1. The replicas sum the gradients of step t - steps, while they compute those of step t.
    2. The optimizer updates the weights by that sum, w[t+1] = w[t] - rate * g[t-steps] with SGD: it
       clips it, and its momenta, its schedule and its `iterations` count what was applied.
    3. The gradients of step t wait, as each replica's own terms.

    The first `steps` updates apply nothing, rather than zeros, which a momentum and a decay of
    weights would take for gradients. The end of an epoch of `fit`, and `strategy.synchronize`,
    apply all that waits, one after the other: then as many updates are made as there were steps,
    and the next ones apply nothing again. All replicas have the same weights, bit for bit, and the
    same in each run. An update is what one device makes that delays its gradients so, for any
    number of replicas.

    With `gradient_accumulation_steps` a step is a window: its sum travels with the last batch of a
    later one. A step that a loss scale skips, because its own gradients are not finite, delays
    nothing and applies nothing. Rows of tables wait, and travel, as dense gradients.

    Source: Langford, Smola, Zinkevich: Slow Learners are Fast, arXiv 0911.0491 (2009), algorithm 1,
    whose tau is `steps`; Li et al.: Pipe-SGD, arXiv 1811.03619 (2018), for sums of all replicas
    that travel meanwhile, whose pipeline has the width K = `steps` + 1.

    Cost: the bytes of a sum of gradients in each step, 2(n-1)/n times per replica, and no time if
    that takes no longer than the gradients, and other processors than they do. What the model sums
    in its own passes, as BatchNormalization does, travels beside it, and shares the link; where
    NCCL sums, it comes after it. Memory: `steps` times the gradients. Gradients are stale: with a
    large rate or momentum training becomes slower or unstable.

    Args:
      steps: The number of updates by which gradients are late, at least 1. More than 1 hides no
        more, since a step ends with all that it began; it is there to study staleness.

    Raises:
      ValueError: `steps` is no whole number of at least 1.

    >>> Delayed()
    Delayed(steps=1)
    """

    replicas_differ: ClassVar[bool] = False
    needs_step: ClassVar[bool] = True
    no_compression: ClassVar[str] = (
        "`Delayed` sends whole gradients: what a compression loses comes back with the next sum, "
        "which would be applied later still. Leave one of them out."
    )
    no_shard: ClassVar[str] = (
        "Under `Delayed` each replica keeps its own terms of whole gradients until they travel, "
        "and `shard` keeps parts of their sums."
    )

    steps: int = 1

    def __post_init__(self) -> None:
        check_count("Delayed", "steps", self.steps, 1, "Delayed()")

    def describe(self) -> dict[str, Any]:
        """Describes the synchronization; see `Synchronization.describe`.

        >>> Delayed().describe()
        {'name': 'Delayed', 'steps': 1}
        """
        return {"name": type(self).__name__, "steps": self.steps}
