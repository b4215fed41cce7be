"""The small sum at a step's end: all that nobody needs before, in one collective for each dtype.

A step waits for other replicas in its gradients. What the step itself does not go on with is put
into a slot instead, and travels with what is summed next after the gradients, as a rule with the
metrics. The slots are:

- "counts": the number of examples of the batch, which each process has cut for itself.
- "statistics": what layers wrote into variables.

The metrics, and the numbers in the logs, are wanted as soon as they are asked for, and take the
slots along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Sums values over the replicas.
Sum = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Values that wait for their sums.

    Attributes:
      values: The replica's own values.
      use: A function that is given the sums, in the graph of the step.
    """

    values: Sequence[tf.Tensor]
    use: Callable[[Sequence[tf.Tensor]], Any]


class Ending:
    """The slots of one replica's step.

    Args:
      sum_values: Sums values over the replicas.

    >>> ending = Ending(lambda values: [2 * value for value in values])
    >>> ending.put("counts", Slot([tf.constant(3)], lambda sums: print("counts", int(sums[0]))))
    >>> metrics = ending.send([tf.constant(1)])
    counts 6
    >>> [int(total) for total in metrics], ending.send([])
    ([2], [])
    """

    def __init__(self, sum_values: Sum) -> None:
        self._sum = sum_values
        self._slots: dict[str, Slot] = {}
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def put(self, name: str, slot: Slot) -> None:
        """Lets values travel with the next ones that are sent from the step's own graph."""
        self._slots[name] = slot

    def send(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums `values`, and with them all that is in slots; returns the sums of `values`.

        In a branch, a loop or a function within the step the slots stay as they are: it may run
        often, or not at all.
        """
        if not self.is_in_own_graph:
            return self._sum(values)
        slots = list(self._slots.values())
        self._slots.clear()
        sums = self._sum([*values, *(value for slot in slots for value in slot.values)])
        rest = iter(sums[len(values) :])
        for slot in slots:
            slot.use([next(rest) for _ in slot.values])
        return sums[: len(values)]

    def send_early(self, name: str) -> Any:
        """Sums what is in one slot now, for code that cannot go on without; None if it was sent.

        Returns:
          What the slot's function returns.
        """
        slot = self._slots.get(name)
        if slot is None:
            return None
        if self.is_in_own_graph:
            del self._slots[name]
        return slot.use(self._sum(slot.values))

    def clear(self) -> None:
        """Drops what is in slots, after an error."""
        self._slots.clear()

    @property
    def is_in_own_graph(self) -> bool:
        """Whether the step's own graph is being built, and not one of a branch within it."""
        if self._graph is None:
            return tf.executing_eagerly()
        return tf.compat.v1.get_default_graph() is self._graph
