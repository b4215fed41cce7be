"""A plan, and the prediction of its step: what is computed, sent and waited for."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

from tfdp.base.bucketing import DEFAULT_BYTES
from tfdp.tools.prediction.cluster_model import ClusterModel
from tfdp.tools.prediction.memory import Memory, memory_of
from tfdp.tools.prediction.sending import COMPRESSIONS, CompressionCost, Sum, halves_of, sum_of
from tfdp.tools.prediction.workload import GradientTensor, Workload, buckets
from tfdp.topology import Topology

# The sum at a step's end: a loss, counts and metrics.
_ENDING = GradientTensor((64,))
_POINTS = 400  # of the distribution of the slowest rank's time


@dataclasses.dataclass(frozen=True)
class Plan:
    """The choices that a strategy is given, which takes them together.

    Attributes:
      topology: A name, or a topology.
      bucket_bytes: The strategy's `bucket_bytes`.
      compression: A name of :data:`tfdp.tools.prediction.sending.COMPRESSIONS`.
      synchronization: "none", "local_sgd", "delayed", "backup" or "asynchronous".
      every: The updates in a synchronization's round.
      shard: What is divided among the ranks; see :data:`tfdp.tools.prediction.memory.SHARDS`.
      accumulation: The optimizer's `gradient_accumulation_steps`.
      batch_normalization: Whose statistics plain BatchNormalization has.

    >>> Plan("tree", 4 * 2**20).arguments()
    ['topology="tree"', 'bucket_bytes=4 * 2**20']
    """

    topology: str | Topology = "native"
    bucket_bytes: int = DEFAULT_BYTES
    compression: str = "none"
    synchronization: str = "none"
    every: int = 1
    shard: str = "none"
    accumulation: int = 1
    batch_normalization: str = "whole_batch"

    @property
    def is_exact(self) -> bool:
        """Whether N replicas train what one device trains, to rounding."""
        one_batch = self.synchronization == "none" and self.batch_normalization == "whole_batch"
        return one_batch and COMPRESSIONS[self.compression].exact

    @property
    def dropped(self) -> int:
        """The number of ranks whose gradients an update does without: the last one's, or none."""
        return 1 if self.synchronization == "backup" else 0

    @property
    def is_delayed(self) -> bool:
        """Whether a step's gradients travel while the next one computes."""
        return self.synchronization == "delayed"

    @property
    def is_apart(self) -> bool:
        """Whether no rank waits for another."""
        return self.synchronization == "asynchronous"

    def arguments(self) -> list[str]:
        """Returns the arguments of `tfdp.DataParallelStrategy`, as a program writes them."""
        written = []
        if self.topology != "native":
            named = isinstance(self.topology, str)
            shown = f'"{self.topology}"' if named else f"tfdp.topology.{self.topology!r}"
            written.append(f"topology={shown}")
        if self.bucket_bytes != DEFAULT_BYTES:
            mebibytes, rest = divmod(self.bucket_bytes, 2**20)
            times = "" if mebibytes == 1 else f"{mebibytes} * "
            shown = str(self.bucket_bytes) if rest else f"{times}2**20"
            written.append(f"bucket_bytes={shown}")
        if self.compression != "none":
            written.append(COMPRESSIONS[self.compression].argument)
        if self.synchronization != "none":
            method = {
                "delayed": "Delayed()",
                "backup": "BackupWorkers(1)",
                "local_sgd": f"LocalSGD({self.every})",
                "asynchronous": f"Asynchronous({self.every})",
            }[self.synchronization]
            written.append(f"synchronization=tfdp.synchronization.{method}")
        if self.shard != "none":
            written.append(f'shard="{self.shard}"')
        if self.batch_normalization != "whole_batch":
            written.append(f'batch_normalization="{self.batch_normalization}"')
        return written

    def written(self) -> str:
        """Returns the strategy as a program writes it.

        >>> Plan("ring").written()
        'tfdp.DataParallelStrategy(topology="ring")'
        """
        return f"tfdp.DataParallelStrategy({', '.join(self.arguments())})"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted step of a plan on a cluster.

    Attributes:
      plan: The plan.
      ranks: The number of ranks.
      hosts: The number of hosts.
      compute_seconds: The forward and backward pass of a rank.
      late_seconds: The wait for the slowest rank.
      communication_seconds: The *exposed* communication, which the backward pass does not hide.
      update_seconds: The optimizer's update.
      other_seconds: Input, Keras, callbacks, launches.
      memory: The bytes of a replica.
      alone_seconds: The step of one rank that has nobody to wait for.
      examples: The examples that count in a step, of all ranks or without the last one's.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> from tfdp.topology import Links
    >>> work = Workload((GradientTensor((6_250_000,)),), 0.5, 1.0, batch=32)
    >>> found = predict(Plan("ring"), work, ClusterModel(4, 1, Links(0, 25e6, 0, 25e6)))
    >>> isinstance(found, Prediction), round(found.step_seconds, 3), round(found.efficiency, 3)
    (True, 3.0, 0.5)
    """

    plan: Plan
    ranks: int
    hosts: int
    compute_seconds: float
    late_seconds: float
    communication_seconds: float
    update_seconds: float
    other_seconds: float
    memory: Memory
    alone_seconds: float
    examples: int

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of a step by part."""
        return {
            "compute": self.compute_seconds,
            "late": self.late_seconds,
            "communication": self.communication_seconds,
            "update": self.update_seconds,
            "other": self.other_seconds,
        }

    @property
    def step_seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """The rate of a rank, over that of one alone; 1 is ideal."""
        return self.alone_seconds / self.step_seconds if self.step_seconds else 1.0

    @property
    def examples_per_second(self) -> float:
        """The rate of all ranks."""
        return self.examples / self.step_seconds if self.step_seconds else 0.0


def predict(
    plan: Plan, work: Workload, cluster: ClusterModel, compression: CompressionCost | None = None
) -> Prediction:
    """Predicts the step of a plan.

    1. A rank computes. The buckets' gradients are there one after the other, as the backward pass
       goes on; where a compression or a synchronization waits for its end, all of them then. Those
       that are delayed by a step are there before it begins.
    2. The slowest rank sets the pace: all compute as long as the expected slowest of n; where the
       last one is not waited for, as the one before it.
    3. The buckets are replayed (:func:`replay`). What ends after the
       backward pass is exposed.
    4. The update follows, and the small sum at the step's end.
    5. Each layer with the whole batch's statistics holds up both passes until they are summed.

    Of k steps that accumulate, one sends; of a round of k updates, one. Times are means over them.
    With `shard` each rank gets its part of a sum in step 3, for "gradients" in each of the k steps,
    updates an n-th, and gets the others' when the update has ended, which nothing hides. With
    "parameters" it gets them twice a step, which the forward and the backward pass hide but for
    what does not fit into them, and for the first bucket. A compression acts on the parts of sums.

    Ranks that train apart skip step 2, the sum of step 4, and step 5: each goes at its own pace. At
    a round's end each sends to all others, and receives, what the halves of a direct sum do.

    Args:
      plan: The plan; one rank alone has nothing to shard.
      work: What a replica computes.
      cluster: The ranks and links.
      compression: What the plan's compression is taken for; None: itself.

    Cost: the first time on so many ranks, a list of each topology's transfers.
    """
    compression = compression or COMPRESSIONS[plan.compression]
    if cluster.ranks == 1:
        plan = dataclasses.replace(plan, shard="none")
    shards = plan.shard != "none"
    forward = cluster.slowdown * work.forward_seconds
    backward = cluster.slowdown * work.backward_seconds
    counted = max(1, cluster.ranks - plan.dropped)
    late = slowest(cluster.ranks, work.deviation, cluster.ranks - counted)
    pace = 1.0 if plan.is_apart else late
    computed = pace * (forward + backward)
    waits = compression.waits or plan.synchronization in ("local_sgd", "backup", "asynchronous")
    topology = "direct" if plan.is_apart else plan.topology
    arrivals, gathering, halves = [], 0.0, []
    tensors = work.tensors
    if plan.synchronization != "none":  # all rows of tables travel
        tensors = tuple(dataclasses.replace(tensor, rows=0) for tensor in tensors)
    together = 2**63 if plan.dropped else plan.bucket_bytes
    for bucket in buckets(tensors, together):
        if shards:
            sum_, gathered = halves_of(bucket.tensors, cluster, compression)
            gathering += gathered.seconds
            halves.append((sum_.core_seconds + sum_.seconds, gathered.seconds))
        else:
            sum_ = sum_of(bucket.tensors, cluster, topology, compression)
        ready = computed if waits else pace * (forward + bucket.ready * backward)
        ready = 0.0 if plan.is_delayed else ready
        arrivals.append((ready, sum_))
    exposed = max(0.0, max(replay(arrivals)) - computed)
    updates = plan.accumulation * plan.every
    sending = exposed if plan.shard == "gradients" else exposed / updates
    if plan.shard == "parameters":
        after = exposed if waits else None
        sending, gathering = _of_weights(halves, pace * forward, pace * backward, after), 0.0
    updating = work.update_seconds / plan.accumulation
    if not plan.is_apart:
        sending += _seconds_of([_ENDING], plan, cluster)
        sending += _seconds_of(_of_layers(plan, work), plan, cluster)
    return Prediction(
        plan=plan,
        ranks=cluster.ranks,
        hosts=cluster.hosts,
        compute_seconds=forward + backward,
        late_seconds=computed - (forward + backward),
        communication_seconds=sending + gathering / updates,
        update_seconds=cluster.slowdown * updating / (cluster.ranks if shards else 1),
        other_seconds=cluster.slowdown * work.other_seconds,
        memory=memory_of(
            work,
            cluster.ranks,
            plan.shard,
            plan.bucket_bytes,
            plan.accumulation,
            compression.waits,
            delays=plan.is_delayed,
        ),
        alone_seconds=work.compute_seconds + updating + work.other_seconds,
        examples=counted * work.batch,
    )


def replay(arrivals: Sequence[tuple[float, Sum]]) -> list[float]:
    """Replays sums that are asked for at given times: the events of a step in the order of time.

    A bucket waits until its gradients are there, the core that compresses has done so, and the
    links are free; the first that is there is the first that is sent. It occupies them for as long
    as the busiest link, or the core that moves the bytes, is busy; what its sum takes beyond that
    is waiting (latency, steps), in which the next bucket may already move, unless it is `in_turn`.

    Args:
      arrivals: The time at which each bucket's gradients are there, and its sum.

    Returns:
      When every rank has the sum of each bucket, in the order in which they began.

    >>> replay([(0.0, Sum(0.0, 1.0, 1.5)), (0.25, Sum(0.0, 1.0, 1.5))])
    [1.5, 2.5]
    >>> replay([(0.0, Sum(0.0, 1.0, 1.5, True)), (0.25, Sum(0.0, 1.0, 1.5, True))])
    [1.5, 3.0]
    """
    links_free = core_free = 0.0
    ended = []
    for ready, sum_ in sorted(arrivals, key=lambda arrival: arrival[0]):
        core_free = max(ready, core_free) + sum_.core_seconds
        begun = max(core_free, links_free)
        links_free = begun + (sum_.seconds if sum_.in_turn else sum_.busy_seconds)
        ended.append(begun + sum_.seconds)
    return ended


@functools.lru_cache(4096)
def slowest(ranks: int, deviation: float, dropped: int = 0) -> float:
    """Returns the expected maximum of the times of n ranks, over the mean of one.

    Times are independent and lognormal. The maximum of n has the distribution F^n, so its mean is
    the integral of F^-1(u^(1/n)) over u from 0 to 1: here a sum over 400 points. Without the d
    largest times each point has the weight ((1 - v) / v)^d, with v = u^(1/n).

    Args:
      ranks: The number of ranks, n.
      deviation: The standard deviation of the times' logarithm, which for small ones is that of
        the times over their mean.
      dropped: The number d of the largest times that do not count.

    >>> slowest(1, 0.0), slowest(64, 0.0)
    (1.0, 1.0)
    >>> round(slowest(2, 0.1), 3), round(slowest(64, 0.1), 2), round(slowest(4096, 0.1), 2)
    (1.056, 1.26, 1.43)
    >>> round(slowest(4, 0.1), 2), round(slowest(4, 0.1, dropped=1), 2)
    (1.11, 1.03)
    """
    if deviation == 0 or ranks == 1:
        return 1.0
    normal = statistics.NormalDist()
    places = [((point + 0.5) / _POINTS) ** (1 / ranks) for point in range(_POINTS)]
    most = statistics.fmean(
        [math.exp(deviation * normal.inv_cdf(place)) for place in places],
        [((1 - place) / place) ** dropped for place in places],
    )
    return most / math.exp(deviation**2 / 2)


def _of_weights(
    halves: Sequence[tuple[float, float]], forward: float, backward: float, waiting: float | None
) -> float:
    """Returns what passes do not hide of weights that are gathered for both, and of gradients.

    Args:
      halves: Of each bucket, in the order of the backward pass, the seconds in which each rank gets
        its part of the sum, and in which all get the whole.
      forward: The seconds of the forward pass.
      backward: Those of the backward pass.
      waiting: Those of all sums, where they wait for the end of the backward pass; None: they do
        not.
    """
    scattered, gathered = (sum(each) for each in zip(*halves, strict=True))
    (last_scattered, first_gathered) = halves[-1]
    before = first_gathered + max(0.0, gathered - first_gathered - forward)
    if waiting is not None:
        return before + max(0.0, gathered - backward) + waiting
    after = last_scattered + max(0.0, gathered + scattered - last_scattered - backward)
    return before + after


def _of_layers(plan: Plan, work: Workload) -> list[GradientTensor]:
    """Returns what layers sum in both passes."""
    is_own = plan.batch_normalization == "per_replica"
    return [each for one in work.normalized if not (one.is_plain and is_own) for each in one.sums]


def _seconds_of(numbers: Sequence[GradientTensor], plan: Plan, cluster: ClusterModel) -> float:
    """Returns the time of sums of few numbers, one after the other, by the strategy's topology."""
    none = COMPRESSIONS["none"]
    return sum(sum_of((each,), cluster, plan.topology, none).seconds for each in numbers)
