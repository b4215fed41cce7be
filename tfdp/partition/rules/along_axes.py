"""Operations along axes that keep the examples apart where the axes are not the batch's."""

from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import has_partials, linear_in


@rule("ReverseSequence", partial=True)
def reverse_sequence(step: Step) -> Results:
    """Keeps the cut, unless sequences lie along it; keeps summands. Sends nothing.

    Where the axis of the sequences' batch is cut, so are their lengths.
    """
    tensor, lengths = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    if tensor.rank is None:
        return None
    sequence, batch = (step.op.attr(name) % tensor.rank for name in ("seq_dim", "batch_dim"))
    layout = tensor.sharded or (lengths.sharded and lengths.sharded.at(batch))
    if layout is None or layout.axis == sequence:
        return None
    if layout.axis != batch:
        operands = [tensor.local, step.whole(lengths)]
    elif fits(tensor, layout) and fits(lengths, layout.at(0)):
        operands = [part(step, tensor, layout), part(step, lengths, layout.at(0))]
    else:
        return None
    return step.results(step.emit(operands), layout)


@rule("LowerBound", "UpperBound")
def search(step: Step) -> Results:
    """Keeps the cut of rows, and of the values that are searched for in a row. Sends nothing.

    Sorted rows that are cut along the sorting are made whole.
    """
    rows, values = step.inputs
    layout = values.sharded or rows.sharded
    if rows.sharded is not None and rows.sharded.axis == 0:
        layout = rows.sharded
    if layout is None or not fits(values, layout) or (layout.axis == 0 and not fits(rows, layout)):
        return None
    if layout.axis == 0:
        sorted_rows = part(step, rows, layout)
    elif values.sharded is not None:
        sorted_rows = step.whole(rows, "values are searched for in it")
    else:
        return None
    return step.results(step.emit([sorted_rows, part(step, values, layout)]), layout)
