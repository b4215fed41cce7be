"""Batches that hypothesis draws: their numbers, where their axis is, and who shares them.

@of_drawn_batches
def test_sums_are_those_of_one_device(case):
    axis = case.draw(case.axes)
    case.check(lambda t: tf.reduce_sum(t, axis))
"""

import dataclasses
import functools
import math
from typing import Any

import harness
import numpy as np
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from partition.check import check
from replica_counts import FAST

# A failing example is small as it is: to search for a smaller one takes minutes.
PHASES = (Phase.explicit, Phase.generate)

# What comes first is drawn first: `make test` has few examples, and they should tell much.
EXAMPLES = 3 if FAST else 8
REPLICAS = [count for count in (3, 2, 4, 5, 1) if count <= harness.LOGICAL_DEVICES]
LENGTHS = [2, 7, 5, 1, 4, 8]
SIZES = [3, 2, 1]
ORDERS = [(1, 0, 2), (1, 2, 0), (0, 1, 2), (2, 0, 1)]
# Which of three axes are merged: the first two, the last two, none, or all.
MERGES = [((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (1, 2)), ((0, 1, 2),)]


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch, and a tensor that is made of it.

    Attributes:
      draw: Draws from a strategy.
      length: The number of examples.
      replicas: The number of replicas.
      sizes: The sizes of an example.
      order: The order in which the tensor has the batch's three axes.
      merged: The axes, in that order, that each of the tensor's axes is made of.
      blocks: How many blocks of all examples follow each other along the batch's axis.
    """

    draw: Any
    length: int
    replicas: int
    sizes: tuple[int, int]
    order: tuple[int, int, int]
    merged: tuple[tuple[int, ...], ...]
    blocks: int

    @classmethod
    def drawn(cls, data, orders, merges, blocks):
        """Draws a case."""

        def of(values):
            return data.draw(st.sampled_from(values))

        return cls(
            data.draw, of(LENGTHS), of(REPLICAS), (of(SIZES), of(SIZES)), of(orders), of(merges),
            of(blocks),
        )  # fmt: skip

    @functools.cached_property
    def batch(self):
        """Whole numbers from 1 on, whose sum tells which of them are in it."""
        count = self.length * math.prod(self.sizes)
        numbers = 7 * np.arange(count) % 23 + 1
        return numbers.reshape(self.length, *self.sizes).astype(np.float32)

    @property
    def axis(self):
        """The tensor's axis that the examples are along."""
        place = self.order.index(0)
        return next(at for at, axes in enumerate(self.merged) if place in axes)

    @property
    def shape(self):
        """The tensor's sizes."""
        sizes = (self.length, *self.sizes)
        shape = [math.prod(sizes[self.order[each]] for each in axes) for axes in self.merged]
        shape[self.axis] *= self.blocks
        return shape

    @property
    def rank(self):
        """The number of the tensor's axes."""
        return len(self.merged)

    @property
    def others(self):
        """The axes that the examples are not along."""
        return [axis for axis in range(self.rank) if axis != self.axis]

    def choose(self, values):
        """Draws one of some values."""
        return self.draw(st.sampled_from(values))

    def some(self, values):
        """Draws some values, in their order, perhaps none."""
        chosen = self.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
        return [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]

    def tensor(self, x):
        """Makes the tensor."""
        shape = self.shape
        shape[self.axis] = -1
        found = tf.reshape(tf.transpose(x, self.order), shape)
        return tf.concat([found + block for block in range(self.blocks)], self.axis)

    def check(self, function, whole=None, **options):
        """Asserts that replicas give what one device gives of the tensor.

        Args:
          function: A function of the tensor.
          whole: The types of operations that may be computed whole; None: any.
          options: Those of `check`.
        """
        report = check(
            lambda x: function(self.tensor(x)),
            self.batch,
            replicas=[self.replicas],
            whole=None,
            **options,
        )
        computed = {each.operation for each in report.whole}
        assert whole is None or computed <= {*whole}, [*map(str, report.whole)]


def of_drawn_batches(test=None, *, orders=ORDERS, merges=MERGES, blocks=(1, 2), examples=EXAMPLES):
    """Gives a test one `case` after another."""
    if test is None:
        return functools.partial(
            of_drawn_batches, orders=orders, merges=merges, blocks=blocks, examples=examples
        )

    # Alike in every run: what `make test` draws is chosen to tell much.
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, phases=PHASES)
    @given(data=st.data())
    def drawn(data):
        test(Case.drawn(data, orders, merges, blocks))

    drawn.__name__ = test.__name__
    return drawn
