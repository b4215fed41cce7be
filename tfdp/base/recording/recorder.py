"""The recorder of one process: its replicas' sums, and whether the present step is a sample."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.unique_numbers import unique_number

# The sums that a recorder keeps since it was made. Only samples add to the last four.
SUMS = (
    "steps",
    "examples",  # those of all replicas
    "updates",  # sums of gradients, finite or not; or updates without one
    "bytes_sent",
    "meetings",  # sums that the step itself waits for, such as what buckets need
    "buckets",  # sums of gradients
    "endings",  # sums at the end of steps, which the next steps wait for at most
    "input_seconds",
    "meeting_seconds",  # the time of the meetings
    "communication_seconds",
    "first_bucket_wait_seconds",
    "norms",
    "square_norms",
    "square_errors",  # of what compression has lost of a replica's own gradients
    "square_gradients",  # of those gradients
)
SLOTS = {name: index for index, name in enumerate(SUMS)}

_KINDS = ("buffers", "flags", "ratios")

# The handles of buffers that are gone; the next buffer that is made destroys them.
_UNUSED: list[tf.Tensor] = []

# The attribute of the first replica's handle with those of the others. What a program is
# partitioned from knows a tensor alone.
_COPIES = "_tfdp_copies"

# The attribute of a model with its recorder, which `setattr` would make Keras track as state.
_OF_MODEL = "_tfdp_recorder"


@dataclasses.dataclass(frozen=True)
class Reading:
    """The sums of some local replicas at one time.

    Attributes:
      values: The sums, float64 [replicas, `SUMS`].

    >>> before, after = Reading(np.zeros([2, len(SUMS)])), Reading(np.ones([2, len(SUMS)]))
    >>> (after - before).of("steps").tolist()
    [1.0, 1.0]
    """

    values: np.ndarray

    def of(self, name: str) -> np.ndarray:
        """Returns one of `SUMS`, for each replica."""
        return self.values[:, SLOTS[name]]

    def __sub__(self, other: Reading) -> Reading:
        return Reading(self.values - other.values)


class Buffer:
    """A tensor on a CPU that stays from step to step: a graph writes it, and Python reads it.

    It is a raw resource of TensorFlow, not a `tf.Variable`: in a strategy's scope that would have a
    copy for each replica, and Keras would track it. Each replica has buffers of its own, because
    TensorFlow orders the ops that touch one resource. If two replicas shared a buffer, a
    conditional of the second, with collectives in it, would wait for the first's, which waits for
    the second.

    Args:
      device: The full name of a CPU device.
      initial: The first value.
      shape: The shape of all values; None: the shape of `initial`.
    """

    def __init__(self, device: str, initial: np.ndarray, shape: Any = None) -> None:
        self._handle: tf.Tensor | None = None
        self.device = device
        self._dtype = tf.as_dtype(initial.dtype)
        self._shape = initial.shape if shape is None else shape
        self._name = f"tfdp_recording_{unique_number()}"
        with tf.init_scope():
            while _UNUSED:
                tf.raw_ops.DestroyResourceOp(resource=_UNUSED.pop(), ignore_lookup_error=True)
            self._handle = self.handle
            self.set(initial)

    @property
    def handle(self) -> tf.Tensor:
        if self._handle is not None:
            return self._handle
        with tf.device(self.device):
            return tf.raw_ops.VarHandleOp(
                dtype=self._dtype, shape=self._shape, shared_name=self._name
            )

    def by_name(self) -> Buffer:
        """Returns the buffer for functions that capture nothing, while this one lives."""
        named = copy.copy(self)
        named._handle = None
        return named

    def set(self, value: Any) -> None:
        with tf.device(self.device):
            value = tf.cast(tf.convert_to_tensor(value), self._dtype)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def put(self, index: int, value: tf.Tensor) -> None:
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=self.handle, indices=[[index]], updates=[tf.cast(value, self._dtype)]
            )

    def add(self, index: int, value: Any) -> None:
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterNdAdd(
                ref=self.handle, indices=[[index]], updates=[tf.cast(value, self._dtype)]
            )

    def read(self) -> tf.Tensor:
        with tf.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)

    def __del__(self) -> None:
        # There must be no op here: garbage is collected at any time, also while TensorFlow builds a
        # graph and holds its lock.
        if self._handle is not None:
            _UNUSED.append(self._handle)


class Recorder:
    """The buffers of all local replicas.

    Cost: a step that is no sample makes some ten writes of a scalar on the CPU, beside the step; a
    sample makes one pass over the gradients for their norm.

    Args:
      devices: The full names of the replicas' devices.

    >>> import tensorflow as tf
    >>> recorder = Recorder([tf.config.list_logical_devices("CPU")[0].name])
    >>> recorder.buffers[0].add(SLOTS["examples"], 32)
    >>> recorder.read().of("examples").tolist()
    [32.0]
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.on_gpu = [":CPU:" not in device for device in devices]
        hosts = [_host(device) for device in devices]
        self.buffers = [Buffer(host, np.zeros(len(SLOTS))) for host in hosts]
        self.flags = [Buffer(host, np.array(False)) for host in hosts]
        # The ratios are the same on all replicas: the first one's are read.
        self.ratios = [Buffer(host, np.zeros(0, np.float32), [None]) for host in hosts]
        self._askers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._samples = False
        for buffers in (self.buffers, self.flags, self.ratios):
            first, *others = [buffer.handle for buffer in buffers]
            setattr(first, _COPIES, others)

    def sample(self, asker: Any, on: bool) -> None:
        """Sets whether steps also record what costs time: norms and ratios.

        Args:
          asker: The object that asks; they are recorded as long as anybody does.
          on: Whether this object asks from now on.
        """
        (self._askers.add if on else self._askers.discard)(asker)
        if bool(self._askers) != self._samples:
            self._samples = bool(self._askers)
            for flag in self.flags:
                flag.set(np.array(self._samples))

    @property
    def samples(self) -> bool:
        return self._samples

    def read(self) -> Reading:
        """Returns the sums that all local replicas have recorded so far."""
        return Reading(np.stack([buffer.read().numpy() for buffer in self.buffers]))

    def read_trust_ratios(self) -> np.ndarray:
        """Returns the last trust ratios by variable, NaN for one without; or an empty array."""
        return self.ratios[0].read().numpy()

    def by_name(self) -> Recorder:
        """Returns the recorder for functions that capture nothing, while this one lives."""
        named = copy.copy(self)
        for kind in _KINDS:
            setattr(named, kind, [buffer.by_name() for buffer in getattr(self, kind)])
        return named

    def attach(self, model: Any) -> None:
        """Lets functions that train `model` record, if they are made from now on."""
        vars(model)[_OF_MODEL] = self

    @staticmethod
    def of(model: Any) -> Recorder | None:
        """Returns the recorder that is attached to a model."""
        return vars(model).get(_OF_MODEL)


def copies_of(handle: tf.Tensor) -> list[tf.Tensor] | None:
    """Returns the handles of all local replicas' buffers, of which `handle` is the first's.

    A program that is traced once writes into the first replica's buffer. What each replica runs
    writes into its own.

    Args:
      handle: Any tensor; None is returned if it is no such handle.
    """
    others = getattr(handle, _COPIES, None)
    return None if others is None else [handle, *others]


def _host(device: str) -> str:
    before, _, kind = device.rpartition("device:")
    return device if kind.startswith("CPU:") else f"{before}device:CPU:0"
