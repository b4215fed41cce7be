"""Sums of biases' gradients, and batch normalization in one operation.

Softmax, cross-entropy and the addition of biases keep their shards: rows of `rule_table.TABLE`.

Batch normalization of several operations takes its moments of the whole batch from one sum: see
`reductions.mean_of`.
"""

from collections.abc import Sequence

from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Sharded
from tfdp.partition.rules.operand_layouts import can_be_summed, is_waiting, on_rows
from tfdp.partition.rules.registry import Results, Step, rule


@rule("BiasAddGrad", partial=True)
def bias_grad(step: Step) -> Results:
    """Gives a partial, of a partial, too. Sends nothing."""
    (gradient,) = step.inputs
    if is_waiting(gradient):
        return step.results(step.emit([gradient]), PARTIAL)
    layout, channels = gradient.sharded, channel_axes(step)
    if layout is None or channels is None or layout.axis in channels:
        return None
    if not can_be_summed(gradient.dtype):
        return None
    (output,) = step.emit([gradient])
    return step.results([step.masked(output, layout)], PARTIAL)


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def fused_batch_norm(step: Step) -> Results:
    """Keeps rows if the statistics are given, and else a shard of the channels. Sends nothing."""
    layout = step.inputs[0].sharded
    if layout is None:
        return None
    if layout.axis == _channel_axis(step):
        return _by_channel(step, layout)
    if step.op.attr("is_training"):
        return None
    found = on_rows(step, {0: layout.axis})
    if found is None:
        return None
    sharding, operands = found
    others: list[Layout] = [REPLICATED] * (len(step.op.outputs) - 1)
    return step.results(step.emit(operands), [sharding, *others])


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def fused_batch_norm_grad(step: Step) -> Results:
    """Keeps rows if the statistics were given; the gradients of scale and offset are partials then.

    Else it keeps a shard of the channels. Sends nothing.
    """
    layout = next((tensor.sharded for tensor in step.inputs[:2] if tensor.sharded), None)
    if layout is None:
        return None
    if layout.axis == _channel_axis(step):
        return _by_channel(step, layout)
    if step.op.attr("is_training"):
        return None
    found = on_rows(step, {0: layout.axis, 1: layout.axis})
    if found is None:
        return None
    sharding, operands = found
    images, *sums = step.emit(operands)
    sums[:2] = [step.masked(each, sharding) for each in sums[:2]]
    layouts: list[Layout] = [sharding, PARTIAL, PARTIAL, *[REPLICATED] * (len(sums) - 2)]
    return step.results([images, *sums], layouts)


def _by_channel(step: Step, layout: Sharded) -> Results:
    """Normalizes channels, each by itself, where the batch is part of their axis.

    What the operation keeps for its gradient in a form of its own is local.
    """
    inputs, gradient = step.inputs, "Grad" in step.op.type
    images, count = (2, 3) if gradient else (1, 4)
    places = dict.fromkeys(range(images), layout.axis)
    for index in range(images, images + count):
        if inputs[index].rank != 1:
            return None
        if inputs[index].dim(0) != 0:  # statistics that are not given are empty
            places[index] = 0
    if any(tensor.layout != LOCAL for tensor in inputs[images + count :]):
        return None
    found = on_rows(step, places)
    if found is None:
        return None
    sharding, operands = found
    by_channel = [sharding.at(0)] * (2 if gradient else 4)
    rest = REPLICATED if gradient else LOCAL
    layouts: list[Layout] = [sharding.at(layout.axis), *by_channel]
    layouts += [rest] * (len(step.op.outputs) - len(layouts))
    return step.results(step.emit(operands), layouts)


def _channel_axis(step: Step) -> int | None:
    if step.op.attr("data_format").startswith(b"NC"):
        return 1
    rank = step.inputs[0].rank
    return None if rank is None else rank - 1


def channel_axes(step: Step) -> Sequence[int] | None:
    """Returns the axes of which one is that of the biases; None: they are not known."""
    rank = step.inputs[0].rank
    if rank is None:
        return None
    first = step.op.type != "BiasAddV1" and step.op.attr("data_format") == b"NCHW"
    return [1, rank - 1] if first else [rank - 1]
