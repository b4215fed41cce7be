"""Which matrix products and convolutions of Keras' classes and functions replicas divide.

`python -m pytest -s tests/partition/test_divided_products.py` prints the tables.
"""

import pytest
import tiers
from partition import keras_operations
from partition.check import strategy

from tfdp.partition import REPLICATED, Batch, Sharded, partition
from tfdp.partition.program_record import AFTER, PRODUCTS, WHOLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What has products that every replica computes alike of the whole batch, with the reason.
UNDIVIDED = {
    "ops.correlate": "the batch is the signal, of which each result needs all",
    "ops.inner": "its branches give results of two ranks, and no cut holds both",
}

# Layers that give something whole whose length the trace does not know.
WHOLE_RESULTS = {
    "layers.Dense": "the gradient of its kernel",
    "layers.HashedCrossing": "crossed features of examples, of which no size is known",
}

GROUPS = tiers.cases([each for each in keras_operations.GROUPS if each != "optimizers"], {"layers"})


def made_of(concrete):
    """The program that replicas run, whose arguments one batch cuts."""
    batch, graph = Batch("batch"), concrete.graph
    given = len(graph.inputs) - len(concrete.captured_inputs)
    layouts = [
        Sharded(0, batch) if tensor.shape.rank and tensor.shape[0] is None else REPLICATED
        for tensor in graph.inputs[:given]
    ]
    collectives, _ = strategy(2).extended.programs.collectives()
    captured = [[tensor] * 2 for tensor in concrete.captured_inputs]
    return partition(graph, layouts, captured, collectives, may_be_empty=False, keep_rows=True)


def row(name, concrete):
    """The products, those that are not divided, what is gathered for operations, whole results."""
    program = made_of(concrete)
    made = program.report
    products = [each for each in made.computed if each.operation in PRODUCTS]
    left = [each.operation for each in products if each.place in (WHOLE, AFTER)]
    whole = sorted({each.operation for each in made.whole})
    gathered = [each.operation for each in made.exchanged if each.makes_whole]
    rows = [
        output.name
        for output, layout in zip(concrete.graph.outputs, program.outputs, strict=True)
        if output.shape.rank and output.shape[0] is None and layout == REPLICATED
    ]
    return name, len(products), left, whole, gathered, rows


@pytest.mark.parametrize("group", GROUPS)
def test_products_are_divided(group):
    rows = []
    for name, make in keras_operations.GROUPS[group]():
        try:
            concrete = make()
        except Exception:
            continue
        rows.append(row(name, concrete))
    print(f"\n{group}: products, not divided, computed whole, gathered for, whole results")
    for name, count, *facts in rows:
        print(f"  {name:40} {count:3}", *facts)
    found = {name: left for name, _, left, *_ in rows if left and name not in UNDIVIDED}
    if group in ("layers", "recurrent"):
        whole = {name for name, *_, results in rows if results}
        assert whole <= WHOLE_RESULTS.keys(), "what follows them is not divided"
    assert not found, f"Products of {found} must be divided, or be in `UNDIVIDED` with the reason."
