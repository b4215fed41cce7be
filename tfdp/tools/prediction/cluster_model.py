"""The ranks of a cluster that is described: its hosts and the links between them."""

import dataclasses

from tfdp.topology import Links

#: The most ranks that are planned for: of more a ring's transfers are millions.
MOST_RANKS = 512

#: What is left of an Ethernet link's rate: of the 1514 bytes of a frame 1448 are not headers of
#: Ethernet, IP and TCP; and for every second frame that comes, an acknowledgement of 66 bytes goes.
PAYLOAD_SHARE = 1448 / (1514 + 66 / 2)


@dataclasses.dataclass(frozen=True)
class EngineCosts:
    """What an engine takes on a rank's core.

    Attributes:
      operation_seconds: Starting one send, receive or all-reduce.
      step_seconds: A step of the engine's own all-reduce beyond the link's latency.
      core_seconds_per_byte: Sending or receiving a byte, with the copies and sums of it.
      rate_share: What its transfers use of a link's rate, since each of them begins and ends.

    >>> ENGINES["nccl"].core_seconds_per_byte
    0.0
    """

    operation_seconds: float
    step_seconds: float
    core_seconds_per_byte: float
    rate_share: float = 1.0


#: "tensorflow": gRPC between processes on cores of an AMD EPYC, fitted to all cells of docs/plan,
#: as `python -m benchmarks plan --minutes 0` prints; the cost of a byte is from `tfdp bench` on
#: loopback. "nccl": GPUs move the bytes; the times are those of a launch, which nothing here has
#: measured.
ENGINES = {
    "tensorflow": EngineCosts(4.1e-4, 4.9e-4, 0.9e-9, 0.91),
    "nccl": EngineCosts(5e-6, 5e-6, 0.0),
}


@dataclasses.dataclass(frozen=True)
class ClusterModel:
    """A number of ranks on equal hosts.

    Attributes:
      ranks: The number of ranks, n.
      ranks_per_host: How many a host has, if there are so many.
      links: The links.
      slowdown: How much longer a rank computes than alone, since ranks share cores.

    Raises:
      ValueError: The ranks are too few or too many, or do not fill hosts.

    >>> ClusterModel(16, 8, Links(0, 1e9, 0, 1e9)).hosts
    2
    """

    ranks: int
    ranks_per_host: int
    links: Links
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        if self.ranks > self.ranks_per_host and self.ranks % self.ranks_per_host:
            fewer = self.ranks // self.ranks_per_host * self.ranks_per_host
            raise ValueError(
                f"The ranks must fill hosts of {self.ranks_per_host}, but received {self.ranks} "
                f"ranks. Use {fewer} or {fewer + self.ranks_per_host}, or another number on a host."
            )

    @property
    def hosts(self) -> int:
        return max(1, self.ranks // self.ranks_per_host)

    @property
    def ranks_of_host(self) -> int:
        return min(self.ranks, self.ranks_per_host)


def check_ranks(ranks: int) -> None:
    """Checks a number of ranks.

    Raises:
      ValueError: It is below 1, or beyond :data:`MOST_RANKS`.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(
            f"The number of ranks must be from 1 to {MOST_RANKS:,}, but received {ranks:,}. Give "
            "what a cluster could have, such as 8 or 512."
        )


def described_links(
    rate_between: float,
    latency_between: float,
    rate_inside: float,
    latency_inside: float,
    engine: str = "tensorflow",
    slowdown: float = 1.0,
) -> Links:
    """Returns the links that hosts would have, as a data sheet describes them.

    Args:
      rate_between: What a host's network card sends, in bits per second, headers included.
      latency_between: The time of a small message between hosts, in seconds: half a `ping`.
      rate_inside: What a rank sends to others of its host, in bits per second.
      latency_inside: The time of a small message inside a host.
      engine: One of :data:`ENGINES`.
      slowdown: How many times as long a rank's core takes, since ranks share cores.

    Raises:
      ValueError: The links contradict each other: ranks of a host are further from each other than
        those of two hosts.

    >>> round(described_links(25e9, 20e-6, 100e9, 5e-6, "nccl").bytes_per_second_between / 1e9, 2)
    2.93
    """
    if latency_inside > latency_between or rate_inside < rate_between:
        raise ValueError(
            "Ranks of a host must be at least as near as those of two hosts, but received "
            f"{rate_inside / 1e9:g} Gbit/s and {latency_inside * 1e6:g} us inside a host, "
            f"{rate_between / 1e9:g} Gbit/s and {latency_between * 1e6:g} us between. Give "
            "`--inside` at least the rate of `--link`, and at most its latency."
        )
    costs = ENGINES[engine]
    return Links(
        latency_seconds_inside=latency_inside,
        bytes_per_second_inside=rate_inside / 8,
        latency_seconds_between=latency_between,
        bytes_per_second_between=costs.rate_share * PAYLOAD_SHARE * rate_between / 8,
        operation_seconds=slowdown * costs.operation_seconds,
        engine_step_seconds=latency_between + slowdown * costs.step_seconds,
        core_seconds_per_byte=slowdown * costs.core_seconds_per_byte,
    )
