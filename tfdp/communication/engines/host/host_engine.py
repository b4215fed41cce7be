"""The primitives of an engine in host memory, as operations of a graph."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.communication.engines import sequence
from tfdp.communication.engines.engine import Engine, check_can_be_gathered
from tfdp.communication.engines.host import collective_programs
from tfdp.communication.engines.host.byte_transport import ByteTransport, Lane, Request
from tfdp.communication.engines.host.collective_programs import HostCollective
from tfdp.communication.engines.host.driver import Driver
from tfdp.communication.engines.sequence import as_token, captured, run_independently
from tfdp.topology import Exchange, Schedule

# A collective of a large tensor runs in the driver's thread, so that TensorFlow's threads compute
# meanwhile; the way there and back takes longer than a small one.
_LARGE_BYTES = 2**21


class HostEngine(Engine):
    """The primitives of `Engine`, computed by NumPy on bytes that a transport moves.

    Collectives of one rank run in the order of the program, one after the other, but for those that
    run beside the others. Ranks of a process run theirs at the same time.

    Args:
      name: The name by which users choose the engine.
      transport: Moves bytes between processes.
      driver: Runs the collectives.
      devices: The devices of this process' ranks, CPUs.
      first_rank: The rank of the first device.
      hosts: For each rank, of all processes, the index of its host.
    """

    def __init__(
        self,
        name: str,
        transport: ByteTransport[Request],
        driver: Driver,
        devices: Sequence[str],
        first_rank: int,
        hosts: Sequence[int],
    ) -> None:
        self.name, self.world_size = name, len(hosts)
        self._hosts = tuple(hosts)
        self._transport, self._driver = transport, driver
        self._ranks = {rank: _Rank(device) for rank, device in enumerate(devices, start=first_rank)}
        self._beside = {rank: _Rank(each.device) for rank, each in self._ranks.items()}

    def all_reduce(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Sums as `Engine` says, in one step or two."""
        if len(group) == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        run = functools.partial(collective_programs.all_reduce, group=group, hosts=self._hosts)
        return self._collective("all_reduce", tensor, group, run, tensor.shape)

    def all_gather(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Concatenates as `Engine` says, in one step."""
        if len(group) == 1:
            return tf.identity(tensor)
        check_can_be_gathered(tensor)
        run = functools.partial(collective_programs.all_gather, group=group)
        shape = tf.TensorShape(None)
        if tensor.shape.rank is not None:
            rows = tensor.shape[0]
            first = None if rows is None else rows * len(group)
            shape = tf.TensorShape([first, *tensor.shape[1:]])
        return self._collective("all_gather", tensor, group, run, shape)

    def all_to_all(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Exchanges rows as `Engine` says, in one step."""
        if len(group) == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        run = functools.partial(collective_programs.all_to_all, group=group)
        return self._collective("all_to_all", tensor, group, run, tensor.shape)

    def exchange(
        self, schedule: Schedule, exchanges: Sequence[Exchange], tensor: tf.Tensor
    ) -> tf.Tensor:
        """Runs the transfers of `exchanges`, as `Engine` says."""
        if tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        _, rank = sequence.current()
        everyone = tuple(range(self.world_size))
        run = collective_programs.ExchangePlan(schedule, exchanges, rank, self._hosts)
        kind = f"all_reduce in {len(exchanges)} exchanges"
        return self._collective(kind, tensor, everyone, run, tensor.shape)

    def _collective(
        self,
        kind: str,
        tensor: tf.Tensor,
        group: tuple[int, ...],
        run: Callable[[np.ndarray, Lane], HostCollective],
        shape: tf.TensorShape,
    ) -> tf.Tensor:
        sequences, rank = sequence.current()
        call = sequence.CollectiveCall.of(kind, tensor, group)
        key = sequences.instance_key(rank, call)
        lane = Lane(self._transport, rank, len(self._ranks), key)

        def begin(own: np.ndarray) -> HostCollective:
            return run(own, lane)

        caller = (self._beside if sequence.is_beside() else self._ranks)[rank]
        elements = tensor.shape.num_elements()
        small = elements is not None and elements * tensor.dtype.size < _LARGE_BYTES
        waits = self._run_here if small and len(self._ranks) == 1 else self._run_elsewhere
        with tf.device(caller.device):
            token = captured(caller.token)
            # Writes of one resource run one after the other, and always: so no collective begins
            # before the rank's last one is done, and none is left out where nothing needs it.
            with tf.control_dependencies(
                [tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))]
            ):
                result = waits(caller, tensor, begin, str(call))
            with tf.control_dependencies([result]):
                tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
        result.set_shape(shape)
        return result

    def _run_here(
        self,
        caller: _Rank,
        tensor: tf.Tensor,
        begin: Callable[[np.ndarray], HostCollective],
        text: str,
    ) -> tf.Tensor:
        """Runs a collective in the thread of its operation."""

        def collective(own: np.ndarray) -> np.ndarray:
            begun = begin(own)
            self._driver.run(begun, text)
            return begun.result

        return _python(collective, tensor, tensor.dtype)

    def _run_elsewhere(
        self,
        caller: _Rank,
        tensor: tf.Tensor,
        begin: Callable[[np.ndarray], HostCollective],
        text: str,
    ) -> tf.Tensor:
        """Runs a collective in the driver's thread; no thread of TensorFlow waits for it."""

        def hand_over(own: np.ndarray) -> np.int32:
            caller.hand_over(self._driver, begin, own, text)
            return np.int32(0)

        begun = _python(hand_over, tensor, tf.int32)
        with tf.control_dependencies([begun]):
            (ticket,) = tf.raw_ops.QueueDequeueV2(
                handle=captured(caller.queue), component_types=[tf.int32]
            )
        run_independently(ticket.op)
        return _python(caller.take, ticket, tensor.dtype)


class _Rank:
    """One rank of this process, and the collective that it has in the driver's thread.

    Attributes:
      device: The rank's device.
      token: A resource handle that nothing reads; it orders the rank's collectives.
      queue: A queue of TensorFlow with an entry for each collective that is done.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        number = unique_number()
        with tf.init_scope(), tf.device(device):
            self.token = as_token(
                tf.raw_ops.VarHandleOp(
                    dtype=tf.float32, shape=[], shared_name=f"tfdp_host_order_{number}"
                )
            )
            self.queue = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int32], shapes=[[]], shared_name=f"tfdp_host_done_{number}"
            )
            self._ticket = tf.constant(0)
        self._result: np.ndarray | Exception | None = None
        self._is_under_way = False
        self._lock = threading.Lock()

    def hand_over(
        self,
        driver: Driver,
        begin: Callable[[np.ndarray], HostCollective],
        own: np.ndarray,
        text: str,
    ) -> None:
        """Begins a collective in the driver's thread."""
        with self._lock:
            if self._is_under_way:
                raise RuntimeError(
                    "A collective begins only once the rank's last one has ended, but the step "
                    "that began the last one was cancelled meanwhile. Start all ranks again."
                )
            self._is_under_way = True
        begun = begin(own)

        def when_done(error: Exception | None) -> None:
            with self._lock:
                self._result = begun.result if error is None else error
            with tf.device(self.device):
                tf.raw_ops.QueueEnqueueV2(handle=self.queue, components=[self._ticket])

        driver.hand_over(begun, text, when_done)

    def take(self, ticket: np.ndarray) -> np.ndarray:
        """Returns the result of the collective that the ticket came from, or raises its error."""
        with self._lock:
            result, self._result = self._result, None
            self._is_under_way = False
        if isinstance(result, Exception):
            raise result
        assert result is not None, "a collective was taken twice"
        return result


def _python(
    function: Callable[[np.ndarray], np.ndarray | np.int32], tensor: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    result = tf.numpy_function(function, [tensor], dtype)
    run_independently(result.op)
    return result
