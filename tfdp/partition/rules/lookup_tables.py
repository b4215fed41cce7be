"""Tables of keys and values: one table in each process, which all its replicas share.

That a table is read is no effect: every replica reads for itself, as in `LookupTableSizeV2`, which
has no rule.
"""

import tensorflow as tf

from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.program_record import Content
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import on_first

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
    """Keeps the shard of the keys; every replica reads the table itself. Sends nothing.

    A key may be a vector, along the last axes of the keys: they must not be sharded. The default
    must be one value, not one for each key.
    """
    table, keys, default = step.inputs
    layout = keys.sharded
    if layout is None or keys.shape is None or default.rank is None:
        return None
    if table.layout != REPLICATED or default.layout != REPLICATED:
        return None
    rank = step.op.outputs[0].shape.rank
    if rank is None:
        rank = _rank(step, layout)
    if rank is None:
        return None
    number = rank - default.rank  # the axes that count keys
    if layout.axis >= number:
        return None
    shape = [*keys.shape[:number], *(default.shape or ())]
    return step.results(step.emit(step.inputs), layout, [shape])


def _rank(step: Step, layout: Sharded) -> int | None:
    """Returns how many axes there are in what a table from outside gives, asked for no keys."""
    table, keys, default = step.inputs
    handle = next((own[0] for other, own in step.program.externals if other is table.local), None)
    shape = step.op.inputs[2].shape
    if handle is None or not shape.is_fully_defined():
        return None
    sizes = [size if isinstance(size, int) else 1 for size in keys.shape or ()]
    sizes[layout.axis] = 0
    try:
        with tf.init_scope():
            found = tf.raw_ops.LookupTableFindV2(
                table_handle=handle,
                keys=tf.zeros(sizes, keys.dtype),
                default_value=tf.zeros(shape, default.dtype),
            )
    except tf.errors.OpError:  # such as of keys that are vectors of another length
        return None
    rank: int | None = found.shape.rank
    return rank


@rule(*CHANGES, always=True)
def change(step: Step) -> Results:
    """Has every replica make the whole change, which is the same if it is made again.

    So it is made once in each process at least. It begins when all replicas have come to it: until
    then one of them may still read, or make an earlier change.

    1. Keys and values are gathered.
    2. The replicas wait for each other: one number is summed.
    3. Each replica changes the table of its process.
    """
    inputs = [step.replicated(tensor, "a table is changed") for tensor in step.inputs]
    _meet(step)
    step.emit(inputs)
    return []


@rule("LookupTableExportV2", always=True)
def export(step: Step) -> Results:
    """Gives all keys and values in the order in which the table holds them.

    Replicas of one process read them once all have made their changes: one number is summed. Of
    several processes the first replica sends its table to the others.
    """
    if step.program.communicator.local_size != step.program.num_replicas:
        return on_first(step)
    _meet(step)
    return step.results(step.emit(step.inputs), REPLICATED)


def _meet(step: Step) -> None:
    """Has what is written next wait until all replicas have come to it."""
    if step.program.num_replicas == 1:
        return
    collective = step.program.communicator.sum([tf.TensorSpec([], tf.float32)])
    zero = step.write.constant(0, tf.float32)
    why, contents = "a table is changed between the same reads of all", [Content.of(zero, [])]
    (summed,) = step.program.exchange(
        step.writer, "sum", collective, [zero], step.op, why, contents
    )
    step.writer.control = (*step.writer.control, f"^{summed.node}")


@rule(*HANDLES, *FILLS, always=True)
def refused(step: Step) -> Results:
    """Refuses a table that is made in a step: each replica would have one of its own.

    Raises:
      ValueError: Always.
    """
    raise ValueError("it makes a resource in the step; make the table outside")
