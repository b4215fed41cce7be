"""Counters in graphs: the collectives that began and ended, read while a graph runs."""

import threading

import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.cluster.watchdog import Progress
from tfdp.communication.engines.sequence import captured


class _Cell:
    """An int64 that graphs write, from any depth of loops and conditionals, and threads read.

    It is no `tf.Variable`, since a strategy would make copies of one.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        with tf.init_scope(), tf.device(device):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[], shared_name=f"tfdp_progress_{unique_number()}"
            )
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.constant(0, tf.int64))

    def add_one(self) -> tf.Operation:
        with tf.device(self._device):
            return tf.raw_ops.AssignAddVariableOp(
                resource=captured(self._handle), value=tf.constant(1, tf.int64)
            )

    def put(self, value: int) -> tf.Operation:
        with tf.device(self._device):
            return tf.raw_ops.AssignVariableOp(
                resource=captured(self._handle), value=tf.constant(value, tf.int64)
            )

    def read(self) -> int:
        with tf.device(self._device):
            return int(tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64))


class Counter:
    """Counts the collectives of one local replica in one group of ranks.

    Its variables are on the replica's device if that is a CPU, and on the host's CPU otherwise.
    Three small ops update them for each collective.
    """

    def __init__(self, device: str, texts: list[str]) -> None:
        self._begun, self._done, self._text = (_Cell(device) for _ in range(3))
        self._texts = texts

    def begin(self, tensor: tf.Tensor, text: str) -> tf.Tensor:
        """Returns `tensor`, once it is counted that a collective with it begins."""
        self._texts.append(text)
        with tf.control_dependencies([tensor]):
            updates = [self._text.put(len(self._texts) - 1), self._begun.add_one()]
        with tf.control_dependencies(updates):
            return tf.identity(tensor)

    def end(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns `tensor`, once it is counted that the collective it comes from is done."""
        with tf.control_dependencies([tensor]):
            update = self._done.add_one()
        with tf.control_dependencies([update]):
            return tf.identity(tensor)

    def read(self) -> tuple[int, int, str]:
        """Returns the numbers of collectives begun and done, and the one begun last."""
        done, begun, text = self._done.read(), self._begun.read(), self._text.read()
        return begun, done, self._texts[text] if begun else ""


class ProgressCounters:
    """The counters of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: list[Counter] = []
        self._texts: list[str] = []
        self._steps = _Cell("/device:CPU:0")

    def counter(self, device: str) -> Counter:
        """Makes a counter for a replica on `device` and one group."""
        on_cpu = device if ":CPU:" in device else device.rsplit("/", 1)[0] + "/device:CPU:0"
        with self._lock:
            self._counters.append(Counter(on_cpu, self._texts))
            return self._counters[-1]

    def step(self) -> tf.Operation:
        """Counts, when it runs, that a replica function begins."""
        return self._steps.add_one()

    def read(self) -> Progress:
        """Returns how far the process is now."""
        with self._lock:
            counters = list(self._counters)
        readings = [counter.read() for counter in counters]
        waiting = [text for begun, done, text in readings if begun > done]
        return Progress(
            steps=self._steps.read(),
            begun=sum(begun for begun, _, _ in readings),
            done=sum(done for _, done, _ in readings),
            operation=waiting[0] if waiting else "",
        )
