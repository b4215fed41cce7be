"""A plan, and the prediction of its step: what is computed, sent and waited for."""

from __future__ import annotations

import dataclasses

from tfdp.prediction.cluster import Cluster
from tfdp.prediction.lateness import slowest
from tfdp.prediction.memory import SHARDS, Memory, memory_of
from tfdp.prediction.replay import replay
from tfdp.prediction.sending import COMPRESSIONS, Sum, sum_of
from tfdp.prediction.workload import Tensor, Workload, buckets
from tfdp.topology import Native, Topology, seconds_of
from tfdp.topology.patterns import Pattern, Stride
from tfdp.topology.registry import from_name

# The sum at a step's end: a loss, counts and metrics.
_ENDING_BYTES = 256

SYNCHRONIZATIONS = ("none", "local_sgd", "diloco", "gossip")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The choices that a strategy is given.

    Attributes:
      topology: A name, or a topology.
      bucket_bytes: The strategy's `bucket_bytes`.
      compression: A name of :data:`tfdp.prediction.sending.COMPRESSIONS`.
      synchronization: One of :data:`SYNCHRONIZATIONS`.
      every: The updates in a synchronization's round.
      shard: What is divided among the ranks; see :data:`tfdp.prediction.memory.SHARDS`.
      accumulation: The optimizer's `gradient_accumulation_steps`.

    Raises:
      ValueError: A name is unknown, or a number is below 1.

    >>> Plan("tree", 4 * 2**20).arguments()
    ['topology="tree"', 'bucket_bytes=4 * 2**20']
    """

    topology: str | Topology = "native"
    bucket_bytes: int = 25 * 2**20
    compression: str = "none"
    synchronization: str = "none"
    every: int = 1
    shard: str = "none"
    accumulation: int = 1

    def __post_init__(self) -> None:
        from_name(self.topology)
        for name, known in (
            ("compression", tuple(COMPRESSIONS)),
            ("synchronization", SYNCHRONIZATIONS),
            ("shard", SHARDS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(known)}, but received "
                    f"{getattr(self, name)!r}. Use {known[0]!r}."
                )
        for name in ("bucket_bytes", "every", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be at least 1, but received {getattr(self, name)}. Use "
                    f"{name}=1 or more."
                )

    @property
    def is_exact(self) -> bool:
        """Whether N replicas train what one device trains, to rounding."""
        return self.synchronization == "none" and COMPRESSIONS[self.compression].exact

    def arguments(self) -> list[str]:
        """Returns the arguments of `tfdp.DataParallelStrategy`, as a program writes them."""
        written = []
        if self.topology != "native":
            named = isinstance(self.topology, str)
            shown = f'"{self.topology}"' if named else f"tfdp.topology.{self.topology!r}"
            written.append(f"topology={shown}")
        if self.bucket_bytes != 25 * 2**20:
            mebibytes, rest = divmod(self.bucket_bytes, 2**20)
            times = "" if mebibytes == 1 else f"{mebibytes} * "
            shown = str(self.bucket_bytes) if rest else f"{times}2**20"
            written.append(f"bucket_bytes={shown}")
        if self.compression != "none":
            written.append(COMPRESSIONS[self.compression].argument)
        calls = {
            "local_sgd": f"LocalSGD({self.every})",
            "diloco": f"DiLoCo({self.every})",
            "gossip": f"Gossip(every={self.every})",
        }
        if self.synchronization != "none":
            call = calls[self.synchronization]
            written.append(f"synchronization=tfdp.synchronization.{call}")
        if self.shard != "none":
            written.append(f'shard="{self.shard}"')
        return written


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted step of a plan on a cluster.

    Attributes:
      plan: The plan.
      ranks: The number of ranks.
      compute_seconds: The forward and backward pass of a rank.
      late_seconds: The wait for the slowest rank.
      communication_seconds: The *exposed* communication, which the backward pass does not hide.
      update_seconds: The optimizer's update.
      other_seconds: Input, Keras, callbacks, launches.
      hidden_seconds: What is sent while the backward pass goes on.
      host_bytes: What the busiest host sends to others in a step.
      first_seconds: The first step; None: not known.
      memory: The bytes of a replica.
      alone_seconds: The step of one rank that has nobody to wait for.
      examples: The examples of all ranks in a step.

    >>> from tfdp.prediction.workload import Tensor
    >>> from tfdp.topology import Links
    >>> work = Workload((Tensor((6_250_000,)),), 0.5, 1.0, batch=32)
    >>> found = predict(Plan("ring"), work, Cluster(4, 1, Links(0, 25e6, 0, 25e6)))
    >>> isinstance(found, Prediction), round(found.step_seconds, 3), round(found.efficiency, 3)
    (True, 3.0, 0.5)
    """

    plan: Plan
    ranks: int
    compute_seconds: float
    late_seconds: float
    communication_seconds: float
    update_seconds: float
    other_seconds: float
    hidden_seconds: float
    host_bytes: float
    first_seconds: float | None
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
        """The time of a step."""
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """The rate of a rank, over that of one alone; 1 is ideal."""
        return self.alone_seconds / self.step_seconds if self.step_seconds else 1.0

    @property
    def examples_per_second(self) -> float:
        """The rate of all ranks."""
        return self.examples / self.step_seconds if self.step_seconds else 0.0


def predict(plan: Plan, work: Workload, cluster: Cluster) -> Prediction | None:
    """Predicts the step of a plan; None where its topology cannot be told for so many ranks.

    1. A rank computes. The buckets' gradients are there one after the other, as the backward pass
       goes on; where a compression or a synchronization waits for its end, all of them then.
    2. The slowest rank sets the pace: all compute as long as the expected slowest of n.
    3. The buckets are replayed (:func:`tfdp.prediction.replay.replay`). What ends after the
       backward pass is exposed.
    4. The update follows, and the small sum at the step's end.

    Of k steps that accumulate, one sends; of a round of k updates, one. Times are means over them.

    Args:
      plan: The plan.
      work: What a replica computes.
      cluster: The ranks and links.
    """
    compression = COMPRESSIONS[plan.compression]
    forward = cluster.slowdown * work.forward_seconds
    backward = cluster.slowdown * work.backward_seconds
    late = (slowest(cluster.ranks, work.deviation) - 1.0) * (forward + backward)
    pace = 1.0 + late / (forward + backward) if late else 1.0
    computed = pace * (forward + backward)
    waits = compression.waits or plan.synchronization != "none"
    arrivals = []
    tensors = work.tensors
    if plan.synchronization != "none":  # weights travel, and all rows of them
        tensors = tuple(dataclasses.replace(tensor, rows=0) for tensor in tensors)
    for bucket in buckets(tensors, plan.bucket_bytes):
        if plan.synchronization == "gossip":
            sum_: Sum | None = _mixed(bucket.size_bytes, cluster)
        else:
            sum_ = sum_of(bucket.tensors, cluster, plan.topology, compression)
        if sum_ is None:
            return None
        ready = computed if waits else pace * (forward + bucket.ready * backward)
        arrivals.append((ready, sum_))
    native = from_name(plan.topology) == Native() or compression.kind in ("blocks", "places")
    sent = replay(arrivals, in_turn=native)
    exposed = max(0.0, max(one.ended for one in sent) - computed)
    whole = sum(sum_.core_seconds + sum_.seconds for _, sum_ in arrivals)
    each = plan.accumulation * (1 if plan.synchronization == "none" else plan.every)
    ending = _ending(plan, cluster)
    update = cluster.slowdown * work.update_seconds / plan.accumulation
    kept = compression.waits
    return Prediction(
        plan=plan,
        ranks=cluster.ranks,
        compute_seconds=forward + backward,
        late_seconds=late,
        communication_seconds=exposed / each + ending,
        update_seconds=update,
        other_seconds=work.other_seconds,
        hidden_seconds=max(0.0, whole - exposed) / each,
        host_bytes=sum(sum_.host_bytes for _, sum_ in arrivals) / each,
        first_seconds=work.first_seconds,
        memory=memory_of(work, cluster.ranks, plan.shard, plan.bucket_bytes, kept),
        alone_seconds=work.compute_seconds
        + work.update_seconds / plan.accumulation
        + work.other_seconds,
        examples=cluster.ranks * work.batch,
    )


def _ending(plan: Plan, cluster: Cluster) -> float:
    """The few numbers that all ranks sum at a step's end, by the strategy's topology."""
    numbers = (Tensor((_ENDING_BYTES // 4,)),)
    found = sum_of(numbers, cluster, plan.topology, COMPRESSIONS["none"])
    return 0.0 if found is None else found.seconds


def _mixed(size: float, cluster: Cluster) -> Sum:
    """A mixing: each rank sends all to one neighbour, mostly on another host."""
    each, between = cluster.ranks_of_host, cluster.hosts > 1
    stride = Stride(
        1,
        size if not between else 0.0,
        size * each if between else 0.0,
        2 * size,
        False,
        not between,
        between,
    )
    pattern = Pattern((stride,), 2, stride.inside_bytes, stride.between_bytes)
    seconds = seconds_of(pattern, size, cluster.links) if cluster.ranks > 1 else 0.0
    return Sum(0.0, seconds, seconds, stride.between_bytes)
