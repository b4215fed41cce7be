"""Tables of keys and values: one table in each process, which all its replicas share.

That a table is read is no effect: every replica reads for itself, as in `LookupTableSizeV2`, which
has no rule.
"""

from __future__ import annotations

import tensorflow as tf

from tfdp.partition.layouts import REPLICATED
from tfdp.partition.report import Content
from tfdp.partition.rules.registry import Results, Step, rule

CHANGES = ["LookupTableImportV2", "LookupTableInsertV2", "LookupTableRemoveV2"]

HANDLES = [
    "AnonymousHashTable",
    "AnonymousMutableDenseHashTable",
    "AnonymousMutableHashTable",
    "AnonymousMutableHashTableOfTensors",
    "HashTable",
    "HashTableV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "MutableHashTable",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableHashTableV2",
]

FILLS = ["InitializeTableFromDataset", "InitializeTableFromTextFileV2", "InitializeTableV2"]


@rule("LookupTableFindV2")
def find(step: Step) -> Results:
    """Keeps the cut of the keys; every replica reads the table itself. Sends nothing.

    A key may be a vector, along the last axes of the keys: they must not be cut. The default must
    be one value, not one for each key.
    """
    table, keys, default = step.inputs
    layout, rank = keys.sharded, step.op.outputs[0].shape.rank
    if layout is None or keys.shape is None or rank is None or default.rank is None:
        return None
    if table.layout != REPLICATED or default.layout != REPLICATED:
        return None
    number = rank - default.rank  # the axes that count keys
    if layout.axis >= number:
        return None
    shape = [*keys.shape[:number], *(default.shape or ())]
    return step.results(step.emit(step.inputs), layout, [shape])


@rule(*CHANGES, always=True)
def change(step: Step) -> Results:
    """Has every replica make the whole change, which is the same if it is made again.

    So it is made once in each process at least. It begins when all replicas have come to it: until
    then one of them may still read, or make an earlier change.

    1. Keys and values are gathered.
    2. The replicas wait for each other: one number is summed.
    3. Each replica changes the table of its process.
    """
    inputs = [step.whole(tensor, "a table is changed") for tensor in step.inputs]
    if step.program.num_replicas > 1:
        collective = step.program.communicator.sum([tf.TensorSpec([], tf.float32)])
        zero = step.write.constant(0, tf.float32)
        why, contents = "all replicas change a table at once", [Content.of(zero, [])]
        (summed,) = step.program.exchange(
            step.writer, "sum", collective, [zero], step.op, why, contents
        )
        step.writer.control = (*step.writer.control, f"^{summed.node}")
    step.emit(inputs)
    return []


@rule(*HANDLES, *FILLS, always=True)
def refused(step: Step) -> Results:
    """Refuses a table that is made in a step: each replica would have one of its own.

    Raises:
      ValueError: Always.
    """
    raise ValueError("it makes a resource in the step; make the table outside")
