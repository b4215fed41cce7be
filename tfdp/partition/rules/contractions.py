"""Products that are summed along axes: of matrices, and what `tf.einsum` writes."""

from collections.abc import Sequence

from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.elementwise import grows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import can_be_summed, estimate, is_waiting, on_rows, partials
from tfdp.partition.shape_inference.known_products import PRODUCTS, Label, labels_of


@rule(*PRODUCTS, partial=True)
def product(step: Step) -> Results:
    """Keeps a shard of an axis that the result has; over the batch, a partial. Sends nothing then.

    Two operands whose shards do not fit: the smaller one is gathered.
    """
    labels = labels_of(step.op, [tensor.rank for tensor in step.inputs])
    return None if labels is None else contract(step, *labels)


def contract(step: Step, terms: Sequence[Sequence[Label]], result: Sequence[Label]) -> Results:
    """Writes products that are summed along the axes that the result has not.

    Args:
      step: The operation.
      terms: The axes of each operand.
      result: The axes of the result.
    """
    if any(is_waiting(tensor) for tensor in step.inputs):
        return _of_partial(step)
    if any(tensor.rank != len(term) for tensor, term in zip(step.inputs, terms, strict=True)):
        return None
    label = _cut_label(step, terms)
    if label is None or (label not in result and not can_be_summed(step.op.outputs[0].dtype)):
        return None
    places = {index: term.index(label) for index, term in enumerate(terms) if label in term}
    found = on_rows(step, places, broadcast=places if isinstance(label, int) else ())
    if found is None:
        return None
    cut, operands = found
    if label in result:
        return step.results(step.emit(operands), cut.at(result.index(label)))
    return step.results(partials(step, cut, operands, list(places)), PARTIAL)


def _cut_label(step: Step, terms: Sequence[Sequence[Label]]) -> Label | None:
    """Returns the axis along which the largest sharded operand is cut."""
    labels = [
        (estimate(tensor.shape), term[tensor.layout.axis])
        for tensor, term in zip(step.inputs, terms, strict=True)
        if isinstance(tensor.layout, Sharded)
    ]
    return max(labels, key=lambda each: each[0])[1] if labels else None


def _of_partial(step: Step) -> Results:
    """Multiplies a summand by a whole operand, if what will be summed does not grow by it."""
    layouts = [tensor.layout for tensor in step.inputs]
    others = [layout for layout in layouts if layout != PARTIAL]
    if layouts.count(PARTIAL) != 1 or any(layout != REPLICATED for layout in others):
        return None
    if grows(step) or step.op.outputs[0].dtype.is_integer:
        return None
    return step.results(step.emit(step.inputs), PARTIAL)
