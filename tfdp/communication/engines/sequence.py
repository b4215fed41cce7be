"""The collectives that each replica issues: compared before one can wait, and their tokens."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.communication.engines import sequence
from tfdp.errors import CollectiveMismatchError

# TensorFlow's own strategies count group keys from 1 and instance keys from 100. A key belongs to
# one list of members for the life of the process, so the keys here start far above.
_FIRST_KEY = 1 << 24
_current = threading.local()


def next_key(count: int = 1) -> int:
    """Returns the first of `count` consecutive keys that nothing in this process has used."""
    return _FIRST_KEY + unique_number("keys of collectives", count)


def next_site() -> int:
    """Returns the number of one more call of varying shape in this process, from 0 on."""
    return unique_number("calls of varying shape")


@dataclasses.dataclass(frozen=True)
class CollectiveCall:
    """One collective as a replica issues it.

    Attributes:
      kind: The name of the operation, such as "all_reduce".
      dtype: The name of the dtype.
      shape: The static shape, None for an unknown dimension; None where the rank is unknown. A call
        whose shape is known only when it runs never meets one whose shape was known before.
      group: The ranks that take part.
    """

    kind: str
    dtype: str
    shape: tuple[int | None, ...] | None
    group: tuple[int, ...]

    @classmethod
    def of(cls, kind: str, tensor: tf.Tensor, group: tuple[int, ...]) -> CollectiveCall:
        """Returns the call of `kind` with `tensor`."""
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        return cls(kind, tensor.dtype.name, shape, group)

    @property
    def is_varying(self) -> bool:
        """Whether the shape is known only when the call runs."""
        return self.shape is None or None in self.shape

    def __str__(self) -> str:
        shape = "unknown shape" if self.shape is None else list(self.shape)
        return f"{self.kind} of {self.dtype} {shape} between ranks {list(self.group)}"


class Sequences:
    """The collectives of one traced replica function, by rank.

    While a replica's function is traced inside `replica(rank)`, an engine asks `instance_key`
    for the key of each collective: replicas that issue the same sequence get the same keys. Keys
    are fixed in the graph, so loops and conditionals can hold collectives.

    Args:
      key_of: Returns the first key of a call, given how many equal ones its rank issued before, and
        how many keys it needs. Processes trace at different times and must come to the same keys.
        None: within one process each trace has new keys.

    Attributes:
      known_alike: Whether all ranks are known to issue each collective with the same shape, so that
        nobody compares those that are known only when the step runs.
    """

    def __init__(self, key_of: Callable[[CollectiveCall, int, int], int] | None = None) -> None:
        self.known_alike = False
        self._key_of = key_of
        self._calls: dict[int, list[CollectiveCall]] = {}
        self._graphs: dict[int, tf.Graph] = {}
        self._instance_keys: dict[tuple[tuple[int, ...], int], int] = {}
        self._issued: collections.Counter[tuple[int, CollectiveCall | tuple[int, ...]]] = (
            collections.Counter()
        )
        self._shapes: dict[tuple[CollectiveCall, int], dict[int, tf.Tensor]] = {}

    def replica(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """Records the collectives that the calling thread issues as those of `rank`."""
        self._calls[rank] = []
        return self.apart(rank)

    def going_on(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """Records calls after earlier ones of `rank`, outside of a replica function.

        All are in one graph. Replica functions that this graph runs began in it, so that what
        orders collectives is captured from it alone here, too (:func:`own_graph`): captured from
        the graphs around, it would be another tensor, and order nothing.
        """
        graph = tf.compat.v1.get_default_graph()
        return self._recording(rank, self._graphs.get(rank, graph))

    def apart(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """Records calls after earlier ones of `rank`, in a function of their own.

        What orders collectives is captured by that function alone; its caller orders the calls.
        """
        return self._recording(rank, tf.compat.v1.get_default_graph())

    @contextlib.contextmanager
    def _recording(self, rank: int, began_in: tf.Graph) -> Iterator[None]:
        """Records the calling thread's collectives after earlier ones of `rank`."""
        outer = getattr(_current, "value", None)
        _current.value = (self, rank)
        self._calls.setdefault(rank, [])
        self._graphs[rank] = began_in
        try:
            yield
        finally:
            _current.value = outer

    def instance_key(self, rank: int, call: CollectiveCall, keys: int = 1) -> int:
        """Records `call` and returns its first key, which the other members of its group get too.

        Calls of varying shape are numbered apart, from 0 on.

        Args:
          rank: The caller's rank.
          call: The collective that it issues.
          keys: The number of consecutive keys that the call needs.
        """
        self._calls[rank].append(call)
        counted = call.group if self._key_of is None else call
        position = self._issued[rank, counted]
        self._issued[rank, counted] += 1
        if self._key_of is not None:
            return self._key_of(call, position, keys)
        if (call.group, position) not in self._instance_keys:
            key = next_site() if call.is_varying else next_key(keys)
            self._instance_keys.setdefault((call.group, position), key)
        return self._instance_keys[call.group, position]

    def note_shape(self, rank: int, tensor: tf.Tensor) -> None:
        """Notes the tensor of the last call; `check` compares its shape when the step runs."""
        call = self._calls[rank][-1]
        position = len(self._calls[rank])
        self._shapes.setdefault((call, position), {})[rank] = axis_sizes(tensor)

    def is_in_own_graph(self, rank: int) -> bool:
        """Returns whether the replica function's own graph is being built, not one inside it."""
        if self._key_of is not None:
            # Other processes may have given the function or a loop around it another name.
            return False
        return tf.compat.v1.get_default_graph() is self._graphs[rank]

    def check(self) -> None:
        """Compares the collectives of the replicas.

        Raises:
          CollectiveMismatchError: Names the two replicas, the position and both collectives.
        """
        for (call, _), of_ranks in self._shapes.items():
            check_shapes(str(call), list(of_ranks), list(of_ranks.values()))
        for group in self.groups():
            first, *others = [rank for rank in group if rank in self._calls]
            for rank in others:
                self._compare(first, self.issued(first, group), rank, self.issued(rank, group))

    def groups(self) -> list[tuple[int, ...]]:
        """Returns the groups in which the recorded ranks communicate."""
        return sorted({call.group for calls in self._calls.values() for call in calls})

    def issued(self, rank: int, group: tuple[int, ...]) -> list[CollectiveCall]:
        """Returns the collectives that `rank` issued in `group`."""
        return [call for call in self._calls[rank] if call.group == group]

    def _compare(
        self, a: int, calls_a: list[CollectiveCall], b: int, calls_b: list[CollectiveCall]
    ) -> None:
        for position, (x, y) in enumerate(itertools.zip_longest(calls_a, calls_b)):
            if x == y:
                continue
            shapes_differ = x and y and dataclasses.replace(x, shape=y.shape) == y
            raise CollectiveMismatchError(
                "Every replica must issue the same collectives in the same order, but number "
                f"{position + 1} is {x or 'missing'} on replica {a} and {y or 'missing'} on "
                f"replica {b}. Take Python branches that depend on the replica out of the step, "
                "or let every replica take part and select the result with `tf.where`."
                + f" {_REMEDY}"
                * bool(shapes_differ)
            )


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Lets the calling thread's collectives run beside those outside of the context.

    They keep their order among themselves, and need no place in that of the others.
    """
    outer, _current.beside = is_beside(), True
    try:
        yield
    finally:
        _current.beside = outer


def is_beside() -> bool:
    """Returns whether the calling thread is within `beside`."""
    return bool(getattr(_current, "beside", False))


def own_graph() -> tf.Graph | None:
    """Returns the graph in which what the calling thread records began; None where it does not."""
    value = getattr(_current, "value", None)
    return None if value is None else value[0]._graphs.get(value[1])


def current() -> tuple[Sequences, int]:
    """Returns the record and the rank of the calling thread.

    Raises:
      RuntimeError: The thread is not inside a replica function.
    """
    value = getattr(_current, "value", None)
    if value is None:
        raise RuntimeError(
            "A collective must be issued inside a replica function, but none is being run by this "
            "thread. Call it in the function that is given to `strategy.run`."
        )
    return value


_REMEDY = (
    "Values of different shapes have no sum: reduce or pad them first, or join their rows with "
    "`all_gather`. Where one replica alone knows a length, `tf.ensure_shape` says it on the others."
)
_MOST_AXES = 8  # the most that a tensor of unknown rank may have


def axis_sizes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the shape as int32, filled up by -1 where the rank is unknown."""
    shape = tf.shape(tensor)
    if tensor.shape.rank is not None:
        return shape
    padded = tf.pad(shape, [[0, _MOST_AXES - tf.rank(tensor)]], constant_values=-1)
    return tf.ensure_shape(padded, [_MOST_AXES])


def check_shapes(call: str, ranks: Sequence[int], shapes: Sequence[tf.Tensor]) -> tf.Operation:
    """Raises when the step runs, unless all `ranks` call with the same shape.

    Args:
      call: The collective in words.
      ranks: The ranks that call it.
      shapes: For each rank the result of `axis_sizes`.
    """
    with tf.device("CPU:0"):
        same = tf.reduce_all([tf.reduce_all(shape == shapes[0]) for shape in shapes])
        said: list[str | tf.Tensor] = [f"{call} must be given the same shape on every replica. "]
        for rank, shape in zip(ranks, shapes, strict=True):
            said += [f"On replica {rank} it has", shape]
        assertion = tf.raw_ops.Assert(condition=same, data=[*said, _REMEDY], summarize=_MOST_AXES)
    # It must not wait for the collective.
    run_independently(assertion)
    return assertion


def run_independently(op: tf.Operation) -> None:
    """Lets `op` run as soon as its inputs are there, and always.

    TensorFlow would run it after all operations with effects that were traced before it, those of
    other replicas included.
    """
    graph = tf.compat.v1.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(op)


_MARK = "_tfdp_is_token"


def as_token(handle: tf.Tensor) -> tf.Tensor:
    """Marks a handle as one that orders collectives, and returns the handle."""
    setattr(handle, _MARK, True)
    return handle


def is_token(handle: tf.Tensor) -> bool:
    """Returns whether a graph that captures `handle` communicates."""
    return hasattr(handle, _MARK)


def captured(handle: tf.Tensor) -> tf.Tensor:
    """Returns `handle`, captured by every graph from the replica's own to the current one.

    The gradient of a conditional or a loop can only use what the forward graph has captured. The
    graphs around the replica's own are left out: another trace of them may call the same function.
    Where no replica's graph is built there is no collective, and TensorFlow captures by itself.
    """
    own = sequence.own_graph()
    if own is None:
        return handle
    graphs = []
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        graphs.append(getattr(graph, "_forward_graph", None) or graph)
        if graph is own:
            break
        graph = graph.outer_graph
    for graph in reversed(graphs):
        handle = graph.capture(handle)
    return handle
