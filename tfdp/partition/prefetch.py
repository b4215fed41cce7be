"""Weights that are cut, whole for the operations that come next (FSDP, 2304.11277).

What is gathered together is a wave. A wave's tensors are whole until the next one is written: what
needs one of them later, such as a layer's gradient, gathers it again. A wave begins when the
operations that use the last but one are done, while those that use the last one compute. So no
more than two waves' wholes are in memory.

What is not lent stays whole until its last use: what a loop needs, which is gathered before it, and
what an operation without a rule, or one that reshapes a weight's cut axis, needs.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tfdp.partition.tensors import Tensor


class _Wave:
    """Tensors that are whole for a while, and the operations that use them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = {id(tensor): tensor for tensor in tensors}
        self.users: list[str] = []


class Prefetch:
    """The waves of one function."""

    def __init__(self) -> None:
        self._waves: collections.deque[_Wave] = collections.deque(maxlen=2)

    def begin(self, tensors: Sequence[Tensor]) -> list[str]:
        """Ends a wave, whose tensors have no whole any more, and begins the next.

        Args:
          tensors: Those that are gathered next.

        Returns:
          What must be done before, as control inputs.
        """
        if self._waves:
            for tensor in self._waves[-1].tensors.values():
                tensor.whole = None
        before = self._waves[0].users if len(self._waves) == 2 else []
        self._waves.append(_Wave(tensors))
        return before

    def note(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Notes an operation that is written, if it uses a whole of the last wave."""
        if self._waves and any(id(each) in self._waves[-1].tensors for each in inputs):
            nodes = [each.local.node for each in results]
            self._waves[-1].users += [f"^{node}" for node in dict.fromkeys(nodes)]
