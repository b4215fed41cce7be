"""The taps through which replicas' steps record, while they are traced."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdp.base.determinism import seconds_in_graph
from tfdp.base.recording.recorder import SLOTS, Recorder

# What records is not told of a tap by its callers: optimizers are called by Keras, and collectives
# by programs that know nothing of telemetry. Replicas of `strategy.run` are traced in threads.
_thread = threading.local()


class _Bucket(NamedTuple):
    """Tensors that travel together: see `Tap.bucket`."""

    inputs: Sequence[tf.Tensor]
    sums: Sequence[tf.Tensor]
    bytes_sent: int | tf.Tensor


class Tap:
    """One replica's end of a `Recorder`, in its step's graph.

    Args:
      recorder: The recorder of this process.
      index: The replica's number among the local ones.
    """

    def __init__(self, recorder: Recorder, index: int) -> None:
        self._recorder = recorder
        self._buffer = recorder.buffers[index]
        self._flag = recorder.flags[index]
        self._on_gpu = recorder.on_gpu[index]
        self._kept_ratios = recorder.ratios[index]
        self._ratios: dict[int, tf.Tensor] = {}
        self._has_norm = False
        self._buckets: list[_Bucket] | None = None

    def of_replica(self, index: int) -> Tap:
        """Returns the tap of another local replica at the same recorder."""
        return Tap(self._recorder, index)

    def add(self, name: str, value: tf.Tensor | float) -> None:
        """Adds a scalar to one of `SUMS`."""
        self._buffer.add(SLOTS[name], value)

    def instant(self, after: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Returns when all of `after` are there: Unix seconds, a float64 scalar."""
        with tf.control_dependencies(self._on_host(after)), tf.device(self._buffer.device):
            return _now(self._flag.handle)

    def beginning(self) -> tf.Tensor:
        """Returns when the graph began, before its input was there."""
        with tf.control_dependencies(None):
            return self.instant()

    def if_sampled(self, compute: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns a float64 scalar, computed in steps that are samples; else 0."""
        zero = tf.constant(0.0, tf.float64)
        return tf.cond(self._flag.read(), lambda: tf.cast(compute(), tf.float64), lambda: zero)

    def add_square_norm(self, compute: Callable[[], tf.Tensor]) -> None:
        """Adds to the square of the step's gradient norm, if the step is a sample.

        Several optimizers in a step have one norm together.
        """
        self.add("square_norms", self.if_sampled(compute))
        if not self._has_norm:
            self.add("norms", self.if_sampled(lambda: tf.constant(1.0)))
        self._has_norm = True

    @contextlib.contextmanager
    def keeping_trust_ratios(self, variables: int) -> Iterator[None]:
        """Keeps the ratios that an update of so many variables shows inside the context."""
        self._ratios = {}
        yield
        if self._ratios:
            nothing = tf.constant(float("nan"))
            by_variable = [self._ratios.get(index, nothing) for index in range(variables)]
            scalars = [tf.cast(ratio, tf.float32) for ratio in by_variable]
            self._kept_ratios.set(tf.stack(scalars))

    def observe_trust_ratio(self, index: int, ratio: tf.Tensor) -> None:
        """Shows the ratio of the variable `index`, a scalar."""
        self._ratios[index] = ratio

    @contextlib.contextmanager
    def watching_buckets(self, of_update: bool, timed: bool) -> Iterator[None]:
        """Records the buckets that are told of within the context: see the function."""
        self._buckets = buckets = list[_Bucket]()
        try:
            yield
        finally:
            self._buckets = None
        if of_update:
            self.add("updates", 1)
        self.add("buckets", len(buckets))
        if not buckets:
            return
        if timed:
            self._add_seconds("first_bucket_wait_seconds", buckets[:1])
            self._add_seconds("communication_seconds", buckets)
        self.add("bytes_sent", sum(tf.cast(each.bytes_sent, tf.float64) for each in buckets))

    def _add_seconds(self, name: str, buckets: Sequence[_Bucket]) -> None:
        """Adds the time from when the last tensor is there to when the last sum is."""
        inputs = [tensor for each in buckets for tensor in each.inputs]
        sums = [tensor for each in buckets for tensor in each.sums]
        self.add(name, self.instant(sums) - self.instant(inputs))

    def bucket(
        self,
        inputs: Sequence[tf.Tensor],
        sums: Sequence[tf.Tensor],
        bytes_sent: Callable[[], int | tf.Tensor],
    ) -> None:
        """Notes a bucket, or a value that travels alone, if they are watched.

        Args:
          inputs: The bucket's tensors before the sum.
          sums: The bucket's tensors after the sum.
          bytes_sent: Computes the bytes that the caller's rank sends.
        """
        if self._buckets is not None:
            self._buckets.append(_Bucket(inputs, sums, bytes_sent()))

    def _on_host(self, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns tensors that are on the CPU only when `tensors` are computed.

        TensorFlow's executor counts a GPU's operation as done when it is queued. Only a copy to the
        host waits until it is computed.
        """
        if not self._on_gpu or not tensors or tf.executing_eagerly():
            return tensors
        heads = [tf.math.real(tf.reshape(tensor, [-1])[:1]) for tensor in tensors]
        heads = [tf.cast(head, tf.float32) for head in heads]
        joined = tf.concat(heads, axis=0)
        with tf.device(self._buffer.device):
            return [tf.identity(joined)]


@tf.function(autograph=False)
def _now(handle: tf.Tensor) -> tf.Tensor:
    """Returns the time, from an op that waits for nothing but its control inputs.

    TensorFlow runs stateful ops that take no resource in the order of the program, and with them
    whatever comes after: a second replica's collectives would wait for the first's. It leaves alone
    the ops that only read a resource which no op of the graph writes.
    """
    read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.bool)
    with tf.control_dependencies([read]):
        return seconds_in_graph()


def current() -> Tap | None:
    """Returns the tap of the calling thread's step; None where nothing is recorded."""
    return getattr(_thread, "tap", None)


def trust_ratio_observer(index: int) -> Callable[[tf.Tensor], None] | None:
    """Returns what records the ratio of the variable `index`; None: nothing is recorded."""
    tap = current()
    return None if tap is None else functools.partial(tap.observe_trust_ratio, index)


def taps_of(recorder: Recorder | None) -> list[Tap]:
    """Returns the taps of all local replicas; of no recorder there are none."""
    return [] if recorder is None else [Tap(recorder, n) for n in range(len(recorder.buffers))]


@contextlib.contextmanager
def meeting(values: Sequence[tf.Tensor], taps: Sequence[Tap]) -> Iterator[list[tf.Tensor]]:
    """Records how long a sum over replicas takes that the step itself needs.

    Args:
      values: The replicas' own values: a sum is made for each dtype.
      taps: The taps of those who wait.

    Yields:
      A list, to which the caller adds the sums.
    """
    arrived = [tap.instant(list(filter(tf.is_tensor, values))) for tap in taps]
    sums = list[tf.Tensor]()
    yield sums
    for tap, instant in zip(taps, arrived, strict=True):
        tap.add("meetings", len({value.dtype for value in values}))
        tap.add("meeting_seconds", tap.instant(sums) - instant)


def watching_buckets(
    of_update: bool = True, timed: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Returns a context that records the sum of gradients made within it, if anything records.

    The wait at the first bucket, which holds the last layers' gradients, is the time from its
    arrival to its sum. The rank that all others wait for therefore waits least. The exposed
    communication is the time from the last gradient's arrival to the last sum.

    Args:
      of_update: Whether the sum counts as an update.
      timed: Whether the step waits for the sum. Of others the bytes alone are recorded.

    >>> import tensorflow as tf
    >>> recorder = Recorder([tf.config.list_logical_devices("CPU")[0].name])
    >>> with tapped(Tap(recorder, 0)) as tap, watching_buckets():
    ...     tap.bucket([tf.ones(3)], [tf.ones(3)], lambda: 12)
    >>> recorder.read().of("bytes_sent").tolist()
    [12.0]
    """
    tap = current()
    return contextlib.nullcontext() if tap is None else tap.watching_buckets(of_update, timed)


@contextlib.contextmanager
def tapped(tap: Tap | None) -> Iterator[Tap | None]:
    """Makes `tap` the calling thread's tap."""
    outer = current()
    _thread.tap = tap
    try:
        yield tap
    finally:
        _thread.tap = outer
