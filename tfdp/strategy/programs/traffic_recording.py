"""The recording of what a program's replicas send, if it was made for a recorder.

Watches stand beside the collectives of the program, which is otherwise the same: what they note is
what `tfdp.base.recording` says, by what `tfdp.partition.purposes` says that each collective
is for. A watch is a function that every local replica has of its own, for its buffers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.communication.collectives import Reducer
from tfdp.partition import Collective, Exchanged, Instrumentation, ReplicaProgram, purposes
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.programs.shared_collectives import registered_collective, traced_apart

# What a watch adds to a sum: a number, or what a replica's tensors make of its rank.
_Added = float | Callable[[int, Sequence[tf.Tensor]], Any]


def recorded(
    program: ReplicaProgram,
    recorder: recording.Recorder,
    source: tf.types.experimental.ConcreteFunction,
    context: ProgramContext,
) -> ReplicaProgram:
    """Returns the program with watches that record.

    Args:
      program: The program.
      recorder: The recorder of this process.
      source: The traced function that it was made from.
      context: What its collectives were made by.
    """
    handles = {id(each.handle) for each in source.graph.variables if each.trainable}
    which = {index for index, each in enumerate(program.externals) if id(each[0]) in handles}
    watching = Instrumentation(program)
    watches = _Watches(watching, recorder, context.devices, context.first_rank)
    found = purposes(program, which)
    # What replicas exchange in code of their own is recorded there.
    meetings, endings = (
        [each for each in collectives if each.kind != "update"]
        for collectives in (found.meetings, found.endings)
    )
    for meeting in meetings:
        watches.between("meeting_seconds", [meeting])
        watches.after([meeting], meetings=1)
    for ending in endings:
        watches.after([ending], endings=1)
    for every in found.buckets:
        buckets = [each for each in every if each.kind != "update"]
        if not buckets:
            continue
        watches.between("first_bucket_wait_seconds", buckets[:1])
        watches.between("communication_seconds", buckets)
        for bucket in buckets:
            sent = _bytes_sent(bucket, context.reducer, context.num_replicas)
            watches.before([bucket], buckets=1, bytes_sent=sent)
    return watching.finish()


class _Watches:
    """Makes watches, and has the program call them.

    Args:
      watching: The program.
      recorder: The recorder.
      devices: The devices of the local replicas.
      first_rank: The number of the first of them.
    """

    def __init__(
        self,
        watching: Instrumentation,
        recorder: recording.Recorder,
        devices: Sequence[str],
        first_rank: int,
    ) -> None:
        self._watching, self._devices, self._first_rank = watching, devices, first_rank
        self._recorder = recorder.by_name()
        self._made: dict[Any, Collective] = {}

    def between(self, name: str, collectives: Sequence[Exchanged]) -> None:
        """Records the seconds from when the last partial is there to when the last sum is."""
        given = [tensor for each in collectives for tensor in self._watching.given(each)]
        got = [tensor for each in collectives for tensor in self._watching.got(each)]
        self._call(collectives[0].function, given, {}, {name: -1.0})
        self._call(collectives[0].function, got, {}, {name: 1.0})

    def before(self, collectives: Sequence[Exchanged], **added: _Added) -> None:
        """Adds to sums what may depend on the partials."""
        given = [tensor for each in collectives for tensor in self._watching.given(each)]
        self._call(collectives[0].function, given, added, {})

    def after(self, collectives: Sequence[Exchanged], **added: _Added) -> None:
        """Adds to sums when all collectives have ended."""
        got = [tensor for each in collectives for tensor in self._watching.got(each)]
        self._call(collectives[0].function, got, added, {})

    def _call(
        self,
        function: str,
        tensors: Sequence[tuple[str, tf.DType]],
        added: Mapping[str, _Added],
        instants: Mapping[str, float],
    ) -> None:
        dtypes = tuple(dtype for _, dtype in tensors)
        key = dtypes, tuple(added.items()), tuple(instants.items())
        if key not in self._made:
            self._made[key] = self._watch(dtypes, added, instants)
        self._watching.call(function, tensors, self._made[key])

    def _watch(
        self,
        dtypes: Sequence[tf.DType],
        added: Mapping[str, _Added],
        instants: Mapping[str, float],
    ) -> Collective:
        functions = []
        for index, device in enumerate(self._devices):

            def watch(*tensors: tf.Tensor, index: int = index, device: str = device) -> list[Any]:
                tap = recording.Tap(self._recorder, index)
                with tf.device(device):
                    if instants:
                        now = tap.instant([each for each in tensors if each.dtype != tf.string])
                    for name, sign in instants.items():
                        tap.add(name, sign * now)
                    for name, value in added.items():
                        rank = self._first_rank + index
                        tap.add(name, value(rank, tensors) if callable(value) else value)
                return []

            functions.append(traced_apart(watch, [tf.TensorSpec(None, each) for each in dtypes]))
        definitions = [function.function_def for function in functions]
        return registered_collective(functions, definitions, [()] * len(functions))


def _bytes_sent(
    exchanged: Exchanged, reducer: Reducer, num_replicas: int
) -> Callable[[int, Sequence[tf.Tensor]], Any]:
    """Returns what gives the bytes that a rank sends in a collective, given the rank's tensors.

    They are those of the topology's schedule, of unknown sizes those of a ring. Of gathered rows
    each rank sends its own to all others.
    """
    is_gather, others = exchanged.kind == "gather", num_replicas - 1
    size = None if is_gather else exchanged.size_bytes

    def sent(rank: int, tensors: Sequence[tf.Tensor]) -> Any:
        if isinstance(size, int):
            is_of_parts = exchanged.kind.endswith("of parts")
            by_ring = exchanged.bytes_sent(size, num_replicas)
            return by_ring if is_of_parts else reducer.bytes_sent(size, rank)
        sizes = [tf.cast(tf.size(each), tf.float64) * each.dtype.size for each in tensors]
        return tf.add_n(sizes) * (others if is_gather else 2 * others / num_replicas)

    return sent
