"""The collectives of partitioned programs: each a traced function for every local replica.

They go the way of all collectives: by the strategy's engine, topology and buckets.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.base import bucketing
from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Reducer, data_mismatch, reduce_scatter, text_rows
from tfdp.communication.engines import Engine, Sequences
from tfdp.communication.engines import beside as beside_others
from tfdp.partition import Collective
from tfdp.strategy._tensorflow_programs import FunctionDef
from tfdp.strategy.programs.shared_collectives import (
    SharedFunctions,
    registered_collective,
    traced_apart,
)

# A tensor of TensorFlow has no more axes.
_MOST_AXES = 254

# From here on a bucket's copies cost more than the collective that it saves.
_BUCKET_BYTES = 4 * 2**20


class CollectiveFunctions:
    """Makes the collectives of one program; it implements `tfdp.partition.Communicator`.

    Args:
      engine: Moves tensors between replicas.
      reducer: Sums by the strategy's topology.
      sequences: The records of the program's collectives, which give them their keys.
      devices: The devices of the local replicas.
      first_rank: The number of the first local replica.
      shared: Makes functions that many collectives share, where that is possible.
      as_replica: Calls a function as the replica of a number, while it is traced.
      keeps_partials: See `Communicator`.
      partials_by_rows: See `Communicator`.
    """

    def __init__(
        self,
        engine: Engine,
        reducer: Reducer,
        sequences: Sequences,
        devices: Sequence[str],
        first_rank: int,
        shared: SharedFunctions | None = None,
        *,
        as_replica: Callable[[int, Callable[[], None]], None],
        keeps_partials: bool = False,
        partials_by_rows: bool = False,
    ) -> None:
        self._shared, self._as_replica = shared, as_replica
        self.keeps_partials, self.partials_by_rows = keeps_partials, partials_by_rows
        self._engine, self._reducer, self._sequences = engine, reducer, sequences
        sequences.known_alike = True  # one program gives them all
        self._devices = dict(enumerate(devices, start=first_rank))
        self._everyone = tuple(range(engine.world_size))

    @property
    def num_replicas(self) -> int:
        """The number of replicas in all processes."""
        return self._engine.world_size

    @property
    def local_size(self) -> int:
        """The number of replicas in this process."""
        return len(self._devices)

    @property
    def bucket_bytes(self) -> int:
        """The most bytes that are summed together, as the strategy was told, if it was."""
        asked = self._reducer.bucket_bytes
        return _BUCKET_BYTES if asked == bucketing.DEFAULT_BYTES else asked

    @property
    def alone_bytes(self) -> int:
        """The least tensor that is summed alone."""
        return min((self.bucket_bytes + 1) // 2, self._reducer.alone_bytes)

    def sum(self, specs: Sequence[tf.TensorSpec], compared: Sequence[str] = ()) -> Collective:
        """Sums as `Communicator` says, in one bucket."""
        known = _bytes(specs)
        # What is compared goes beside a tensor that it would have copied into a bucket.
        is_alone = len(specs) == 2 and (known is None or known >= self.alone_bytes)
        apart = bool(compared) and is_alone

        def of_rank(rank: int, *tensors: tf.Tensor) -> list[tf.Tensor]:
            buckets = [[each] for each in tensors] if apart else [tensors]
            sums = [total for bucket in buckets for total in self._sums(rank, bucket)]
            if not compared:
                return sums
            with tf.device("CPU:0"):
                checks = data_mismatch.checks(tf.cast(sums[-1], tf.int64), compared)
            with tf.control_dependencies(checks):
                return list(map(tf.identity, sums))

        return self._collective("sum", of_rank, specs)

    def gather(self, spec: tf.TensorSpec) -> Collective:
        """Gathers rows as `Communicator` says: all are padded to the most that one has."""

        def of_rank(rank: int, rows: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
            return [self._gathered(rows, counts)]

        counts = tf.TensorSpec([self.num_replicas], tf.int32)
        return self._collective("gather", of_rank, [spec, counts])

    def sum_parts(self, dtype: tf.DType, shardings: Sequence[Sharding]) -> Collective:
        """Gives parts of sums as `Communicator` says: a reduce-scatter."""

        def of_rank(rank: int, *tensors: tf.Tensor) -> list[tf.Tensor]:
            return reduce_scatter.sum_parts(tensors, shardings, self._reducer.transport(rank))

        specs = [tf.TensorSpec(sharding.shape, dtype) for sharding in shardings]
        return self._of_its_own(of_rank, specs)

    def gather_parts(self, dtype: tf.DType, shardings: Sequence[Sharding]) -> Collective:
        """Gives wholes as `Communicator` says: an all-gather."""

        def of_rank(rank: int, *tensors: tf.Tensor) -> list[tf.Tensor]:
            pairs = zip(tensors, shardings, strict=True)
            own = [tf.ensure_shape(tensor, sharding.part_shape(rank)) for tensor, sharding in pairs]
            return reduce_scatter.gather_parts(own, shardings, self._reducer.transport(rank))

        specs = [
            tf.TensorSpec(_without(sharding.shape, sharding.axis), dtype) for sharding in shardings
        ]
        return self._of_its_own(of_rank, specs)

    def from_first(self, specs: Sequence[tf.TensorSpec]) -> Collective:
        """Gives all replicas the first one's tensors, as `Communicator` says."""

        def of_rank(rank: int, *tensors: tf.Tensor) -> list[tf.Tensor]:
            return [self._from_first(rank, tensor) for tensor in tensors]

        return self._collective("from first", of_rank, specs)

    def by_replicas(
        self,
        function: Callable[..., Sequence[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        beside: bool = False,
    ) -> Collective:
        """Runs a function as each replica, as `Communicator` says."""

        told: list[int | None] = []

        def of_rank(rank: int, *tensors: tf.Tensor) -> list[tf.Tensor]:
            found: list[tf.Tensor] = []

            def run() -> None:
                order = beside_others() if beside else contextlib.nullcontext()
                with self._reducer.counting_bytes() as sent, order:
                    found.extend(function(*tensors))
                known = [each for each in sent if each is not None]
                told.append(sum(known) if len(known) == len(sent) else None)

            self._as_replica(rank, run)
            return [*found, tf.constant(True)]

        made = self._of_its_own(of_rank, specs)
        known = [each for each in told if each is not None]
        return dataclasses.replace(made, sent=max(known) if len(known) == len(told) else None)

    def _collective(
        self,
        kind: str,
        of_rank: Callable[..., list[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
    ) -> Collective:
        """Makes a collective of the functions that `of_rank` gives for each local replica."""
        if self._shared is not None:
            return self._shared.collective(kind, of_rank, specs)
        return self._of_its_own(of_rank, specs)

    def _of_its_own(
        self,
        of_rank: Callable[..., list[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
    ) -> Collective:
        functions = []
        for rank, device in self._devices.items():

            def traced(
                *tensors: tf.Tensor, rank: int = rank, device: str = device
            ) -> list[tf.Tensor]:
                with self._sequences.apart(rank), tf.device(device):
                    return of_rank(rank, *tensors)

            functions.append(traced_apart(traced, specs))
        definitions, captured = of_one_signature(functions)
        return registered_collective(functions, definitions, captured)

    # ---- what one replica runs

    def _sums(self, rank: int, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Of flags one replica has the value, and the others have False.
        numbers = [tf.cast(each, tf.int32) if each.dtype.is_bool else each for each in tensors]
        sums = self._reducer.sum_bucket(numbers, rank)
        return [
            tf.ensure_shape(tf.cast(total, tensor.dtype), tensor.shape)
            for total, tensor in zip(sums, tensors, strict=True)
        ]

    def _gathered(self, rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        def numbers(own: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
            return self._engine.gather_counted(own, counts, self._everyone)

        return text_rows.gather_any(rows, counts, numbers)

    def _from_first(self, rank: int, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.shape.is_fully_defined() and tensor.dtype != tf.string:
            return self._reducer.broadcast(tensor, rank)
        # The other replicas do not know the shape, which travels first.
        own = [tf.rank(tensor)[tf.newaxis], tf.shape(tensor)] if rank == 0 else [[0]]
        said = tf.concat(own, 0)
        padded = tf.pad(said, [[0, _MOST_AXES + 1 - tf.size(said)]])
        (said,) = self._reducer.sum_bucket([tf.ensure_shape(padded, [_MOST_AXES + 1])], rank)
        shape = said[1 : 1 + said[0]]
        flat = tf.reshape(tensor, [-1]) if rank == 0 else tf.zeros([0], tensor.dtype)
        others = tf.zeros([self.num_replicas - 1], tf.int32)
        counts = tf.concat([tf.reduce_prod(shape)[tf.newaxis], others], 0)
        whole = tf.reshape(self._gathered(flat, counts), shape)
        return tf.ensure_shape(whole, tensor.shape)


def _without(shape: Sequence[int], axis: int) -> list[int | None]:
    return [None if each == axis else size for each, size in enumerate(shape)]


def _bytes(specs: Sequence[tf.TensorSpec]) -> int | None:
    if any(not spec.shape.is_fully_defined() or spec.dtype == tf.string for spec in specs):
        return None
    return functools.reduce(
        int.__add__, (math.prod(spec.shape.as_list()) * spec.dtype.size for spec in specs), 0
    )


def of_one_signature(
    functions: Sequence[tf.types.experimental.ConcreteFunction],
) -> tuple[list[FunctionDef], list[list[tf.Tensor]]]:
    """Returns the definitions of replicas' functions, padded to one signature, and the captures.

    A program calls a collective with the tensors that it captures, of each replica its own. Where
    replicas hold different variables, as of an optimizer of which each keeps some, a replica that
    captures fewer of a dtype is given one of its own again, which it does not use.
    """
    definitions = [function.function_def for function in functions]
    captured = [list(function.captured_inputs) for function in functions]
    kinds = [[tensor.dtype for tensor in each] for each in captured]
    if all(each == kinds[0] for each in kinds):
        return definitions, captured
    dtypes = list(dict.fromkeys(dtype for each in kinds for dtype in each))
    most = {dtype: max(each.count(dtype) for each in kinds) for dtype in dtypes}
    found, given = [], []
    for definition, own in zip(definitions, captured, strict=True):
        changed, tensors = _with(definition, own, most)
        found.append(changed)
        given.append(tensors)
    return found, given


def _with(
    definition: FunctionDef, own: Sequence[tf.Tensor], most: dict[tf.DType, int]
) -> tuple[FunctionDef, list[tf.Tensor]]:
    """Returns a function that takes so many captured tensors of each dtype, and these."""
    copy = FunctionDef()
    copy.CopyFrom(definition)
    copy.signature.name += "_alike"
    begin = len(definition.signature.input_arg) - len(own)
    del copy.signature.input_arg[begin:]
    for index in [index for index in copy.arg_attr if index >= begin]:
        del copy.arg_attr[index]
    tensors: list[tf.Tensor] = []
    for dtype, count in most.items():
        places = [index for index, tensor in enumerate(own) if tensor.dtype == dtype]
        for place in places:
            if begin + place in definition.arg_attr:
                at = len(copy.signature.input_arg)
                copy.arg_attr[at].CopyFrom(definition.arg_attr[begin + place])
            argument = definition.signature.input_arg[begin + place]
            copy.signature.input_arg.add().CopyFrom(argument)
            tensors.append(own[place])
        for number in range(count - len(places)):
            name = f"unused_{dtype.name}_{number}"
            copy.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
            tensors.append(own[places[0]] if places else tf.zeros([], dtype))
    return copy, tensors
