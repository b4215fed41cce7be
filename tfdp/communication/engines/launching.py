"""The start of a collective on one rank: its keys, ordering token, counter and function."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tfdp.communication.engines import sequence
from tfdp.communication.engines.graph_counters import Counter, ProgressCounters
from tfdp.communication.engines.sequence import as_token, captured

# The number of a group or an instance, which may be computed when the step runs, or a token.
Key: TypeAlias = int | tf.Tensor

# What orders collectives: their group, and whether they run beside the others of that group.
Order: TypeAlias = tuple[tuple[int, ...], bool]

# The keys of calls of varying shape, from the first on: for each call one for each size. What does
# not fit has other groups of the same ranks. Other keys stay below.
_FIRST_VARYING = 2**30
_SITES = 2**10
_SIZES = 2**20
_MORE_GROUPS = 2**16


class KeyOfGroup(Protocol):
    """A function that numbers groups of ranks, alike in all processes."""

    def __call__(self, group: tuple[int, ...], keys: int = 1) -> int:
        """Returns the first of so many consecutive numbers that the group alone has."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One collective, or all transfers of a schedule, as one rank starts it.

    Attributes:
      rank: The caller's rank.
      group: The ranks that take part.
      group_key: The number of the group.
      instance_key: The key of the collective, or of the first of the transfers.
      ordering_token: The resource that orders: ops with the same token run in program order.
      counter: Counts the collectives that begin and end; None within one process.
      text: The collective in words.
    """

    rank: int
    group: tuple[int, ...]
    group_key: Key
    instance_key: Key
    ordering_token: tf.Tensor
    counter: Counter | None
    text: str


class CollectiveLauncher:
    """Prepares and starts the collectives of a process' ranks.

    Args:
      devices: The devices of this process' ranks.
      first_rank: The rank of the first device.
      key_of_group: Returns numbers of a group, alike in all its processes; None: within one
        process.
      counters: Counts the collectives that the ranks begin and end.
      one_by_one: Whether a device runs its collectives one after the other, also those of different
        groups. As the program's order is alike on all ranks, none waits for one that cannot begin.
    """

    def __init__(
        self,
        devices: Sequence[str],
        first_rank: int,
        key_of_group: KeyOfGroup | None,
        counters: ProgressCounters | None,
        one_by_one: bool,
    ) -> None:
        self._devices = dict(enumerate(devices, start=first_rank))
        self._key_of_group = key_of_group or (lambda group, keys=1: sequence.next_key(keys))
        self._counters = counters
        self._one_by_one = one_by_one
        self._group_keys: dict[Order, int] = {}
        self._more_groups: dict[tuple[int, ...], int] = {}
        self._tokens: dict[tuple[Order | None, int], tf.Tensor] = {}
        self._counter_of: dict[tuple[Order, int], Counter] = {}

    def prepare(
        self, kind: str, tensor: tf.Tensor, group: tuple[int, ...], keys: int = 1
    ) -> Launch:
        """Records a collective of the calling thread's rank, and gets its keys.

        Args:
          kind: The name of the operation, such as "all_reduce".
          tensor: The tensor that the collective is called with.
          group: The ranks that take part.
          keys: The number of instance keys that the collective needs; they follow each other.
        """
        sequences, rank = sequence.current()
        call = sequence.CollectiveCall.of(kind, tensor, group)
        group_key: Key = self.group_key(group)
        instance_key: Key = sequences.instance_key(rank, call, keys)
        if call.is_varying:
            # The runtime remembers an instance's shape, so each shape is an instance.
            site, size = instance_key, _varying_size(tensor)
            instance_key = _FIRST_VARYING + site % _SITES * _SIZES + size % _SIZES
            # All in one group, if they fit: each costs NCCL a communicator, which nothing frees.
            # Only what has kernels on GPUs that compute on the host.
            beyond = site // _SITES * (2**31 // _SIZES) + size // _SIZES
            more = self._more_groups_key(group) + beyond % _MORE_GROUPS
            group_key = group_key + tf.minimum(beyond, 1) * (more - group_key)
        token, counter = captured(self.token(group, rank)), self._counter(group, rank)
        return Launch(rank, group, group_key, instance_key, token, counter, str(call))

    def group_key(self, group: tuple[int, ...]) -> int:
        """Returns the number of a group, the same in all its processes.

        What runs beside the others has another number: the runtime takes it for another group.
        """
        order = self._order(group)
        if order not in self._group_keys:
            self._group_keys.setdefault(order, self._key_of_group(group))
        return self._group_keys[order]

    def _order(self, group: tuple[int, ...]) -> Order:
        return group, sequence.is_beside() and not self._one_by_one

    def _more_groups_key(self, group: tuple[int, ...]) -> int:
        """Returns the first of the numbers for calls whose keys have no place in the group's."""
        if group not in self._more_groups:
            self._more_groups.setdefault(group, self._key_of_group(group, _MORE_GROUPS))
        return self._more_groups[group]

    @staticmethod
    def start(
        collective: Callable[..., tf.Tensor],
        tensor: tf.Tensor,
        launch: Launch,
        apart: bool = False,
    ) -> tf.Tensor:
        """Runs `collective(tensor, ordering_token=..., group_key=..., instance_key=...)`.

        Inside a loop the runtime adds the loop's name to the instance key, and that name differs
        between replicas. A collective that may be inside one therefore runs in a function of its
        own that is not inlined.

        Args:
          collective: Issues the ops.
          tensor: Their input.
          launch: The collective as `prepare` returned it.
          apart: Whether such a function is made also where there is no loop. Ops that take no
            ordering token need it: outside of one, TensorFlow leaves them out where nothing needs
            the result, on some replicas but not on others, since only one replica's logs are read.
        """
        sequences, rank = sequence.current()
        counter, keys = launch.counter, _keys(launch)
        tensor = tensor if counter is None else counter.begin(tensor, launch.text)
        if sequences.is_in_own_graph(rank) and not apart:
            result = collective(tensor, **keys)
        else:

            @tf.function(autograph=False, experimental_attributes={"_noinline": True})
            def call(tensor: tf.Tensor, keys: dict[str, Key]) -> tf.Tensor:
                return collective(tensor, **keys)

            result = call(tensor, keys)
        return result if counter is None else counter.end(result)

    def _counter(self, group: tuple[int, ...], rank: int) -> Counter | None:
        if self._counters is None:
            return None
        key = self._order(group), rank
        if key not in self._counter_of:
            self._counter_of[key] = self._counters.counter(self._devices[rank])
        return self._counter_of[key]

    def token(self, group: tuple[int, ...], rank: int) -> tf.Tensor:
        """Returns the resource that orders the collectives of a rank, or those in a group."""
        # The token is a resource handle that nothing reads: ops that take it run in program order
        # on its device.
        order = self._order(group)
        key = (None if self._one_by_one else order), rank
        if key not in self._tokens:
            with tf.init_scope(), tf.device(self._devices[rank]):
                name = f"tfdp_order_{self._group_keys[order]}_{rank}"
                handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)
                self._tokens[key] = as_token(handle)
        return self._tokens[key]


def _keys(launch: Launch) -> dict[str, Key]:
    return {
        "ordering_token": launch.ordering_token,
        "group_key": launch.group_key,
        "instance_key": launch.instance_key,
    }


def _varying_size(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the dimension that is unknown, an int32; of several, the number of all elements."""
    if has_one_unknown(tensor.shape):
        return tf.shape(tensor)[tensor.shape.as_list().index(None)]
    return tf.size(tensor)


def has_one_unknown(shape: tf.TensorShape) -> bool:
    """Returns whether all of a shape but one dimension is known.

    >>> [has_one_unknown(tf.TensorShape(shape)) for shape in ([2, None], [None, None], None)]
    [True, False, False]
    """
    return shape.rank is not None and shape.as_list().count(None) == 1
