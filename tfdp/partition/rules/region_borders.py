"""The borders of regions in which each replica computes its own, and marks in a program.

See `marks`.
"""

from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED
from tfdp.partition.marks import (
    BORDER,
    FIRST_ROWS,
    MEAN,
    MORE_ROWS,
    ROWS,
    WHOLE,
    border,
    part_asked_for,
)
from tfdp.partition.rules.elementwise import identity
from tfdp.partition.rules.registry import Results, Step, rule


@rule(BORDER, always=True, partial=True)
def cross(step: Step) -> Results:
    """Takes rows that are sharded along the first axis, which are local then, and what is whole.

    Out of the region it gives rows in the layout of those that went in; and summands, which are
    the replica's own or, of a mean, that by its examples. Sends nothing. Where the rows that went
    in are not cut, all is whole, within the region, too. A mark for a part sends summands so that
    each replica gets the sum of its part.
    """
    (tensor,) = step.inputs
    found = border(step.op.attr("message"))
    if found is None:
        part = part_asked_for(step.op.attr("message"))
        if part is None:
            return identity(step)
        return step.results([step.scattered(tensor, part, "its variable is cut")], part)
    kind, region = found
    regions = step.program.regions
    if kind == WHOLE:
        return step.results([step.whole(tensor)], REPLICATED)
    if kind == FIRST_ROWS:
        is_cut = tensor.sharded is not None and tensor.sharded.axis == 0
        regions[region] = tensor.sharded if is_cut else None
    layout = regions[region]
    if layout is None:
        return step.results([step.whole(tensor, "a region has no cut rows")], REPLICATED)
    if kind in (FIRST_ROWS, MORE_ROWS):
        return step.results([step.to(tensor, layout)], LOCAL)
    if kind == ROWS:
        is_own = tensor.layout == LOCAL
        return step.results([tensor.local if is_own else step.to(tensor, layout)], layout)
    own = step.by_rows(tensor.local, layout) if kind == MEAN else tensor.local
    return step.results([step.masked(own, layout)], PARTIAL)
