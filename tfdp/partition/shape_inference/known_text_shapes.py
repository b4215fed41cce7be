"""The sizes of what is made of texts and of ragged tensors, as far as they follow from others."""

from collections.abc import Sequence
from typing import Any

from tfdp.partition.shape_inference.known_shapes import (
    Found,
    known_lengths,
    known_scalar,
    shapes_of,
)
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor


@shapes_of("DecodePaddedRaw", "DecodeRaw")
def _decoded(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return None if inputs[0].rank is None else [[*inputs[0].dims(), None]]


@shapes_of("LookupTableFindV2")
def _found(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    _, keys, default = inputs
    rank = op.outputs[0].shape.rank
    if keys.rank is None or default.rank is None or rank is None:
        return None
    return [[*keys.dims()[: rank - default.rank], *default.dims()]]


@shapes_of("StringSplitV2")
def _words(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [[None, 2], [None], [2]]


@shapes_of("UnicodeDecode", "UnicodeDecodeWithOffsets")
def _characters(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    texts = inputs[0]
    splits = [texts.dim(0) + 1] if texts.rank == 1 else [None]
    return [splits, *([None] for _ in op.outputs[1:])]


@shapes_of("StringNGrams")
def _ngrams(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [[None], inputs[1].shape]


@shapes_of("Bincount", "DenseBincount")
def _counts(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    size = known_scalar(inputs[1])
    if op.type == "Bincount" or inputs[0].rank == 1:
        return [[size]]
    return None if inputs[0].rank is None else [[inputs[0].dim(0), size]]


@shapes_of("RaggedBincount")
def _counts_by_row(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    splits, _, size, *_ = inputs
    rows = splits.dim(0) - 1 if splits.rank == 1 else None
    return [[rows, known_scalar(size)]]


@shapes_of("RaggedTensorToTensor")
def _padded(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    rank, kinds = op.outputs[0].shape.rank, op.attr("row_partition_types")
    if rank is None or not kinds:
        return None
    said = known_lengths(inputs[0]) if inputs[0].rank == 1 else None
    rows: Any = None if said is None else said[0]
    if rows is None and kinds[0] == b"FIRST_DIM_SIZE":
        rows = known_scalar(inputs[3])
    if rows is None and kinds[0] == b"ROW_SPLITS" and inputs[3].rank == 1:
        rows = inputs[3].dim(0) - 1
    return [[rows, *(said[1:] if said is not None else [None] * (rank - 1))]]
