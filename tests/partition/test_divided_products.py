"""Which matrix products and convolutions of Keras' classes and functions replicas divide.

`python -m pytest -s tests/partition/test_divided_products.py` prints the tables.
"""

import pytest
import tiers
from partition import keras_operations
from partition.check import strategy

from tfdp.partition import REPLICATED, Batch, Sharded, partition
from tfdp.partition.report import AFTER, PRODUCTS, WHOLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What has products that every replica computes alike of the whole batch, with the reason.
UNDIVIDED = {}

GROUPS = tiers.cases(
    [each for each in keras_operations.GROUPS if each != "optimizers"], {"layers", "losses"}
)


def report(concrete):
    """What replicas do in the place of a traced function, whose arguments one batch cuts."""
    batch, graph = Batch("batch"), concrete.graph
    given = len(graph.inputs) - len(concrete.captured_inputs)
    layouts = [
        Sharded(0, batch) if tensor.shape.rank and tensor.shape[0] is None else REPLICATED
        for tensor in graph.inputs[:given]
    ]
    collectives, _ = strategy(2).extended.programs.collectives()
    captured = [[tensor] * 2 for tensor in concrete.captured_inputs]
    return partition(
        graph, layouts, captured, collectives, may_be_empty=False, keep_rows=True
    ).report


def row(name, made):
    """The products, those that are not divided, and what is gathered for operations."""
    products = [each for each in made.computed if each.operation in PRODUCTS]
    left = [each.operation for each in products if each.place in (WHOLE, AFTER)]
    whole = sorted({each.operation for each in made.whole})
    gathered = [each.operation for each in made.exchanged if each.makes_whole]
    return name, len(products), left, whole, gathered


@pytest.mark.parametrize("group", GROUPS)
def test_products_are_divided(group):
    rows = []
    for name, make in keras_operations.GROUPS[group]():
        try:
            concrete = make()
        except Exception:
            continue
        rows.append(row(name, report(concrete)))
    print(f"\n{group}: products, not divided, computed whole, gathered for")
    for name, count, left, whole, gathered in rows:
        print(f"  {name:40} {count:3} {left} {whole} {gathered}")
    found = {name: left for name, _, left, *_ in rows if left and name not in UNDIVIDED}
    assert not found, f"Products of {found} must be divided, or be in `UNDIVIDED` with the reason."
