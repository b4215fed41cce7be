"""Samples of operations, with what their rules make of them.

A sample is a function of batches. As a test it says what they are:

@sample((3, 2), sends=["sum"])
def test_reductions_of_partials_are_partials(x):
    total = tf.reduce_sum(x, 0)
    return tf.reduce_sum(total, 1), tf.reduce_mean(total)

As a row of a table its name begins with the type of the operation, and one test reads all rows:

SAMPLES = {"MatMul of all with all": Sample(lambda x: x @ tf.transpose(x), [(4,)])}
test_products_are_those_of_one_device = of_samples(SAMPLES)
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import tiers
from partition.check import REPLICAS, check
from partition.examples import in_shares, numbers


@dataclasses.dataclass(frozen=True)
class Sample:
    """A use of operations.

    Attributes:
      function: A function of batches.
      batches: What they are: the sizes of an example, a function that
        makes one or several of a length, or the batch.
      gives: A layout of the results of the operation that the name begins with: one that is
        sharded is among them, another one is the only one. None: any.
      layouts: All layouts of results, by types of operations.
      sends: The kinds of collectives. None: any.
      whole: The types of operations that are computed whole. None: any.
      options: Those of `check`.
    """

    function: Callable[..., Any]
    batches: Sequence[Any] = ((4,),)
    gives: str | None = None
    sends: Sequence[str] | None = None
    whole: Collection[str] | None = ()
    layouts: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, layouts, name="", length=7, replicas=REPLICAS):
        """Asserts that replicas make what one device makes, as the sample says.

        Args:
          layouts: The layouts that rules gave, by types.
          name: Begins with the type of an operation.
          length: The number of examples.
          replicas: The numbers of replicas.
        """
        batches = [one for each in self.batches for one in _batches(each, length)]
        options = {"replicas": replicas, **self.options}
        report = check(self.function, *batches, whole=self.whole, **options)
        found = layouts.get(name.partition(" ")[0].strip(","), ())
        found = {re.sub(r" by [^,)]*", "", each) for each in found}
        if self.gives is not None:
            assert self.gives in found if "sharded" in self.gives else found == {self.gives}
        for type_, expected in self.layouts.items():
            assert layouts[type_] == expected, type_
        if self.sends is not None:
            assert [each.kind for each in report.exchanged] == [*self.sends]


def _batches(each, length):
    if isinstance(each, tuple):
        return [numbers(length, *each)]
    made = each(length) if callable(each) else each
    return made if isinstance(made, tuple) else [made]


def of_samples(samples, kept=None):
    """Returns the test of a table; of the rows that are not `kept` `make test` runs none."""

    @in_shares
    @pytest.mark.parametrize("name", samples if kept is None else tiers.cases(samples, kept))
    def test(name, length, replicas, layouts):
        samples[name].check(layouts, name, length, replicas)

    return test


def sample(*batches, sends=None, whole=(), layouts=None, **options):
    """Makes a test of a function: of batches of each length, or of those that are given."""

    def made(function):
        row = Sample(function, batches, None, sends, whole, layouts or {}, options)

        @in_shares
        def of_each_length(length, replicas, layouts):
            row.check(layouts, "", length, replicas)

        def of_these(layouts):
            row.check(layouts)

        varies = all(isinstance(each, tuple) or callable(each) for each in batches)
        test = of_each_length if varies else of_these
        test.__module__, test.__doc__ = function.__module__, function.__doc__
        return test

    return made
