"""Operations that keep a shard of the axes that they do not mix: a table, and what applies a row.

Operands that are sharded otherwise than the largest one are gathered; else nothing is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import Sharded
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.normalization import channel_axes
from tfdp.partition.rules.operand_layouts import (
    dominant,
    has_partials,
    linear_in,
    on_aligned,
    on_rows,
)
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_joined_shapes import axes_of_diagonals
from tfdp.partition.shape_inference.known_shapes import axes_of

# How many of the last axes are mixed, or what tells which axes are: None where they are unknown.
Mixed: TypeAlias = "int | Callable[[Step], Collection[int] | None]"


@dataclasses.dataclass(frozen=True)
class KeptShard:
    """Keeps the shard of an axis that operations do not mix.

    Attributes:
      types: The types of the operations.
      operands: Those that have the axis, others are replicated; None: all, broadcast together.
      mixed: The axes of the first of them that are mixed; None: all but the first.
      broadcast: Those of `operands` that may have one row for all.
      drops: Whether the result lacks the mixed axes, unless the operation is told to keep them.
      linear: The operand that results are partial with; None: partials are summed before.
      accepts: By operand what an operation accepts where there are no examples.
      unless: An attribute that has entries numbered through the batch.
    """

    types: str
    operands: Sequence[int] | None = (0,)
    mixed: Mixed | None = None
    broadcast: Collection[int] = ()
    drops: bool = False
    linear: int | None = None
    accepts: Mapping[int, str | int] = dataclasses.field(default_factory=dict)
    unless: str = ""

    def __call__(self, step: Step) -> Results:
        if has_partials(step):
            return None if self.linear is None else linear_in(step, self.linear)
        found = None if self.unless and step.op.attr(self.unless) else self._operands(step)
        if found is None:
            return None
        shard, operands = found
        for index, value in self.accepts.items():
            operands[index] = step.filled(operands[index], shard, value)
        if self.drops and not step.op.attr("keep_dims"):
            before = [axis for axis in self._mixed(step) or () if axis < shard.axis]
            shard = shard.at(shard.axis - len(before))
        return step.results(step.emit(operands), shard)

    def _operands(self, step: Step) -> tuple[Sharded, list[Output]] | None:
        """Returns the shard that is kept and a replica's operands; None: none is kept."""
        if self.operands is None:
            return on_aligned(step, self.mixed if isinstance(self.mixed, int) else 0)
        axis = 0
        if self.mixed is not None:
            tensors = [step.inputs[index] for index in self.operands]
            largest, mixed = dominant(tensors, aligned_right=False), self._mixed(step)
            if largest is None or mixed is None or largest.axis in mixed:
                return None
            axis = largest.axis
        return on_rows(step, dict.fromkeys(self.operands, axis), self.broadcast)

    def _mixed(self, step: Step) -> Collection[int] | None:
        return self.mixed(step) if callable(self.mixed) else _last(step, self.mixed or 0)


def _last(step: Step, count: int) -> Collection[int] | None:
    """Returns the last axes of the first operand."""
    rank = step.inputs[0].rank
    return None if rank is None else range(rank - count, rank)


def _named(step: Step) -> Collection[int] | None:
    """Returns the axes that the last operand names; None: none, for which some take all."""
    return axes_of(step.inputs[-1], step.inputs[0].rank) or None


def _below_batches(step: Step) -> Collection[int] | None:
    rank = step.inputs[0].rank
    return None if rank is None else range(step.op.attr("batch_dims"), rank)


def _diagonals(step: Step) -> Collection[int] | None:
    return _last(step, axes_of_diagonals(step.op, step.inputs))


TABLE = [
    # ---- rows of images
    KeptShard(
        """
        AvgPool AvgPool3D Conv2D Conv3D DepthToSpace DepthwiseConv2dNative Dilation2D
        ExtractImagePatches ExtractVolumePatches LRN MaxPool MaxPool3D MaxPoolV2 ResizeArea
        ResizeBicubic ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad
        ScaleAndTranslate SpaceToDepth
        """
    ),
    KeptShard(
        """
        DrawBoundingBoxes DrawBoundingBoxesV2 ResizeBicubicGrad ResizeBilinearGrad
        ScaleAndTranslateGrad
        """,
        operands=(0, 1),
    ),
    KeptShard(
        """
        FractionalMaxPoolGrad LRNGrad MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad
        MaxPoolGradGradV2 MaxPoolGradV2
        """,
        operands=(0, 1, 2),
    ),
    KeptShard("Conv2DBackpropInputV2 Dilation2DBackpropInput", operands=(0, 2)),
    KeptShard("MaxPoolWithArgmax", unless="include_batch_in_index"),
    KeptShard(
        "MaxPoolGradWithArgmax MaxPoolGradGradWithArgmax",
        operands=(0, 1, 2),
        unless="include_batch_in_index",
    ),
    KeptShard(
        "ImageProjectiveTransformV2 ImageProjectiveTransformV3", operands=(0, 1), broadcast=(1,)
    ),
    KeptShard("CropAndResize", operands=(1, 2)),  # boxes of any images, which are gathered
    KeptShard("Conv", mixed=_below_batches),
    KeptShard("AdjustHue AdjustSaturation HSVToRGB RGBToHSV", mixed=1),
    KeptShard("AdjustContrastv2", mixed=3),
    # ---- classes
    KeptShard("BiasAdd BiasAddV1", mixed=channel_axes),
    KeptShard("LogSoftmax NthElement Softmax TopKV2", mixed=1),
    KeptShard("InTopK InTopKV2 SparseSoftmaxCrossEntropyWithLogits", operands=(0, 1)),
    KeptShard("SoftmaxCrossEntropyWithLogits", operands=(0, 1), broadcast=(0, 1)),
    # ---- along axes
    KeptShard("Cumsum ReverseV2 Roll", mixed=_named, linear=0),
    KeptShard("Cumprod CumulativeLogsumexp", mixed=_named),
    KeptShard("ArgMax ArgMin ReduceJoin", mixed=_named, drops=True),
    KeptShard("FFT IFFT IRFFT RFFT", mixed=1),
    KeptShard("FFT2D IFFT2D IRFFT2D RFFT2D", mixed=2),
    KeptShard("FFT3D IFFT3D IRFFT3D RFFT3D", mixed=3),
    # ---- matrices and vectors
    KeptShard("MatrixDiag MatrixDiagV2 MatrixDiagV3", mixed=_diagonals),
    KeptShard("MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3", mixed=2),
    KeptShard("MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3", operands=(0, 1), mixed=2),
    KeptShard("Cross", operands=None, mixed=1),
    # ---- texts, of which an empty one, or another place than its begin, may be refused
    KeptShard("DecodeCompressed DecodePaddedRaw DecodeRaw", mixed=0, accepts={0: ""}),
    KeptShard("DecodeJSONExample", mixed=0, accepts={0: "{}"}),
    KeptShard("StringToNumber", mixed=0, accepts={0: "0"}),
    KeptShard("Substr", operands=None, accepts={1: 0}),
]

for _row in TABLE:
    rule(*_row.types.split(), partial=_row.linear is not None)(_row)


@rule("ReverseSequence", partial=True)
def reverse_sequence(step: Step) -> Results:
    """Keeps the shard, unless sequences lie along it; keeps partials. Sends nothing.

    Where the axis of the sequences' batch is sharded, so are their lengths.
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
        operands = [tensor.local, step.replicated(lengths)]
    elif fits(tensor, layout) and fits(lengths, layout.at(0)):
        operands = [part(step, tensor, layout), part(step, lengths, layout.at(0))]
    else:
        return None
    return step.results(step.emit(operands), layout)


@rule("LowerBound", "UpperBound")
def search(step: Step) -> Results:
    """Keeps the shard of rows, and of the values that are searched for in a row. Sends nothing.

    Sorted rows that are sharded along the sorting are gathered.
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
        sorted_rows = step.replicated(rows, "values are searched for in it")
    else:
        return None
    return step.results(step.emit([sorted_rows, part(step, values, layout)]), layout)
