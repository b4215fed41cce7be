"""Each type of the table, with its batch along each axis, in shards of many kinds."""

import dataclasses
import gzip
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, strategy
from partition.drawn import of_drawn_batches
from partition.examples import cuts, numbers, turned
from partition.samples import sample

from tfdp.partition.rules.rule_table import TABLE
from tfdp.partition.source import definition

# Examples, entries of each and blocks of all along the batch's axis, on three replicas.
UNEVEN, FEWER, MERGED, NONE = (7, 1, 1), (2, 1, 1), (4, 2, 2), (0, 1, 1)

# What operations take for their attributes.
WINDOW, STEP = [1, 2, 2, 1], [1, 1, 1, 1]
ATTRS = {
    **dict.fromkeys(("ksize", "ksizes"), WINDOW),
    **dict.fromkeys(("strides", "rates", "dilations"), STEP),
    **{"padding": "SAME", "block_size": 2, "depth_radius": 1, "padding_value": 5.0},
    **{"interpolation": "BILINEAR", "align": "RIGHT_LEFT"},
}
IN_SPACE = {
    **{name: [1, 2, 2, 2, 1] for name in ("ksize", "ksizes")},
    **{name: [1] * 5 for name in ("strides", "dilations")},
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A use of an operation.

    Attributes:
      function: A function of operands.
      shapes: Their shapes; along the batch's axis each has other sizes.
      mixed: The axes along which the operation mixes entries.
      tried: The axes that the batch is along; None: all.
      batches: Examples, entries of each and blocks.
    """

    function: Callable
    shapes: Sequence[Sequence[int]]
    mixed: Sequence[int] = ()
    tried: Sequence[int] | None = None
    batches: Sequence[tuple[int, int, int]] = (UNEVEN, FEWER, MERGED)


def raw(type_, *inputs, **attrs):
    """Writes an operation of a type, with its inputs in their order, and the attributes it has."""
    own = {each.name for each in definition(type_).attr}
    given = {name: value for name, value in {**ATTRS, **attrs}.items() if name in own}
    names = [argument.name for argument in definition(type_).input_arg]
    return getattr(tf.raw_ops, type_)(**dict(zip(names, inputs, strict=True)), **given)


def uses(types, shapes, *others, mixed=(), tried=None, **attrs):
    """Samples of types by their names: they take the operands, and others that are replicated."""

    def of(type_):
        return lambda *operands: raw(type_, *operands, *others, **attrs)

    return {type_: Sample(of(type_), shapes, mixed, tried) for type_ in types.split()}


def of_images(types, *others, number=1, shape=(4, 4, 6, 3), tried=(0, 1), **attrs):
    """Samples of which the first axis counts images, in operands of one shape."""
    return uses(types, [shape] * number, *others, mixed=(1,), tried=tried, **attrs)


def of_texts(function, batches=(UNEVEN, FEWER, MERGED, NONE)):
    """A sample of texts, one of each number; of none, too."""
    return Sample(lambda x: function(as_text(2 * x)), [(4, 2)], batches=batches)


def as_text(x):
    return tf.strings.as_string(tf.cast(10 * x, tf.int32))


def complex_of(x):
    return tf.complex(x, 2 * x)


def classes(x, count, dtype=tf.int32):
    return tf.cast(10 * x, dtype) % count


def counted(x):
    return tf.reshape(tf.range(tf.size(x, tf.int64)), tf.shape(x))


def moved(type_, *fill):
    def function(x, moves):
        moves = tf.concat([moves, tf.zeros_like(moves[:, :2])], 1)
        return raw(type_, x, moves, [5, 4], *fill)

    return function


def of_cubes(types, *others, **options):
    return of_images(types, *others, shape=(4, 4, 4, 6, 3), **IN_SPACE, **options)


def filtered(type_, *sizes, **attrs):
    return lambda x, y: raw(type_, x, numbers(*sizes), y, **attrs)


def boxed(type_, *colors):
    return lambda x, boxes: raw(type_, x, boxes * [0.1, 0.2, 0.5, 0.6], *colors)


PLACES = [list(range(5)), list(range(7))]
ROWS, LINES, PLANES = [(4, 5)], [(4, 5, 6)], [(4, 5, 6, 3)]
IMAGES, SPACE, FIRST = [(4, 4, 6, 3)], [(4, 4, 4, 6, 3)], (0,)
MATRICES = [(4, 3, 5, 5), (4, 3, 5)]
RANKED = [(4, 5), (4,)], (), FIRST
GZIPPED = gzip.compress(b"Ab", mtime=0)

SAMPLES = {
    # ---- rows of images
    **of_images("AvgPool ExtractImagePatches LRN MaxPool MaxPoolWithArgmax"),
    **of_images("DepthToSpace", shape=(4, 4, 6, 4)),
    **of_images("SpaceToDepth", tried=FIRST),
    **of_images("MaxPoolV2", WINDOW, STEP),
    **of_images("ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor", [7, 9]),
    **of_images("ResizeNearestNeighborGrad", [3, 5]),
    **of_images("ScaleAndTranslate", [7, 9], [1.5, 0.7], [0.5, 1.0]),
    **of_images("Conv2D DepthwiseConv2dNative", numbers(2, 2, 3, 2)),
    **of_images("Dilation2D", numbers(2, 2, 3)),
    **of_cubes("AvgPool3D ExtractVolumePatches MaxPool3D"),
    **of_cubes("Conv3D", numbers(2, 2, 2, 3, 2)),
    **of_images("ResizeBicubicGrad ResizeBilinearGrad", number=2),
    **of_images("ScaleAndTranslateGrad", [1.5, 0.7], [0.5, 1.0], number=2),
    **of_images("LRNGrad MaxPoolGrad MaxPoolGradGrad", number=3),
    **of_images("MaxPoolGradGradV2 MaxPoolGradV2", WINDOW, STEP, number=3),
    **of_cubes("MaxPool3DGrad MaxPool3DGradGrad", number=3),
    "Conv2D, dilated": Sample(
        lambda x: raw("Conv2D", x, numbers(2, 2, 3, 2), dilations=[1, 2, 2, 1]),
        IMAGES,
        (1,),
        (0, 1),
    ),
    "Conv2D, in groups": Sample(
        lambda x: raw("Conv2D", x, numbers(2, 2, 1, 6)), IMAGES, (1,), (0, 1)
    ),
    "AvgPoolGrad": Sample(lambda x: raw("AvgPoolGrad", tf.shape(x), x), IMAGES, (1,), (0, 1)),
    "AvgPool3DGrad": Sample(
        lambda x: raw("AvgPool3DGrad", tf.shape(x), x, **IN_SPACE), SPACE, (1,), (0, 1)
    ),
    "FractionalMaxPoolGrad": Sample(
        lambda x, y: raw("FractionalMaxPoolGrad", x, x, y, *PLACES),
        *[IMAGES * 2, (), FIRST],
    ),
    "Dilation2DBackpropInput": Sample(
        filtered("Dilation2DBackpropInput", 2, 2, 3), IMAGES * 2, (1,), (0, 1)
    ),
    "MaxPoolWithArgmax through the batch": Sample(
        lambda x: raw("MaxPoolWithArgmax", x, include_batch_in_index=True), IMAGES, (0, 1), (0, 1)
    ),
    "MaxPoolGradWithArgmax": Sample(
        lambda x, y: raw("MaxPoolGradWithArgmax", x, y, classes(y, 70, tf.int64)),
        *[IMAGES * 2, (), FIRST],
    ),
    "MaxPoolGradWithArgmax through the batch": Sample(
        lambda x, y: raw("MaxPoolGradWithArgmax", x, y, counted(x), include_batch_in_index=True),
        *[IMAGES * 2, (0,), FIRST],
    ),
    "DrawBoundingBoxes": Sample(boxed("DrawBoundingBoxes"), [*IMAGES, (4, 2, 4)], (1,), (0, 1)),
    "DrawBoundingBoxesV2": Sample(
        boxed("DrawBoundingBoxesV2", [[1.0, 0.0, 0.5]]), [*IMAGES, (4, 2, 4)], (1,), (0, 1)
    ),
    "ImageProjectiveTransformV2": Sample(
        moved("ImageProjectiveTransformV2"), [*IMAGES, (4, 6)], (), FIRST
    ),
    "ImageProjectiveTransformV3": Sample(
        moved("ImageProjectiveTransformV3", 0.5), [*IMAGES, (4, 6)], (), FIRST
    ),
    "ImageProjectiveTransformV2, one for all": Sample(
        lambda x: moved("ImageProjectiveTransformV2")(x, numbers(1, 6)), IMAGES, (1,), (0, 1)
    ),
    "CropAndResize": Sample(
        lambda x: raw("CropAndResize", numbers(2, 4, 5, 3), x / 2, classes(x[:, 0], 2), [2, 3]),
        *[[(4, 4)], (), FIRST],
    ),
    "Conv": Sample(
        lambda x: raw("Conv", x, numbers(3, 3, 2, 4), batch_dims=2),
        [(4, 3, 4, 5, 2)],
        (2, 3),
        range(4),
    ),
    **uses("AdjustContrastv2", IMAGES, 0.3, mixed=(1, 2), tried=(0, 1, 2)),
    **uses("AdjustHue AdjustSaturation", IMAGES, 0.3, tried=(0, 1, 2)),
    **uses("HSVToRGB RGBToHSV", IMAGES, tried=(0, 1, 2)),
    "RGBToHSV of colors": Sample(
        lambda x: raw("RGBToHSV", x), [(4, 5, 3)], (2,), (2,), batches=[(3, 1, 1)]
    ),
    # ---- classes
    **uses("BiasAdd BiasAddV1", [(4, 5, 3)], numbers(3), tried=(0, 1)),
    "BiasAdd, channels in front": Sample(
        lambda x: raw("BiasAdd", x, numbers(3), data_format="NCHW"), [(4, 3, 5, 6)], (3,), (0, 2, 3)
    ),
    "BiasAdd of examples": Sample(lambda x: raw("BiasAdd", x, x[0]), ROWS, (1,), (1,)),
    **uses("LogSoftmax Softmax", ROWS, mixed=(1,)),
    **uses("NthElement", LINES, 1, mixed=(2,)),
    **uses("TopKV2", LINES, 2, mixed=(2,)),
    "TopKV2 of another axis's length": Sample(
        lambda x: tf.math.top_k(x, tf.shape(x)[1] - 1), LINES, (2,), (0, 2)
    ),
    "InTopK": Sample(lambda x, y: raw("InTopK", x, classes(y, 5), k=2), *RANKED),
    "InTopKV2": Sample(lambda x, y: raw("InTopKV2", x, classes(y, 5), 2), *RANKED),
    "SparseSoftmaxCrossEntropyWithLogits": Sample(
        lambda x, y: raw("SparseSoftmaxCrossEntropyWithLogits", x, classes(y, 5)), *RANKED
    ),
    "InTopKV2 of classes": Sample(lambda x: raw("InTopKV2", x, [1, 0, 1, 0], 1), ROWS, (1,), (1,)),
    **uses("SoftmaxCrossEntropyWithLogits", ROWS * 2, mixed=(1,)),
    "SoftmaxCrossEntropyWithLogits, targets of all": Sample(
        lambda x: raw("SoftmaxCrossEntropyWithLogits", x, numbers(1, 5)), ROWS, (), FIRST
    ),
    "SoftmaxCrossEntropyWithLogits, logits of all": Sample(
        lambda x: raw("SoftmaxCrossEntropyWithLogits", numbers(1, 5), x), ROWS, (), FIRST
    ),
    # ---- along axes
    **uses("Cumprod Cumsum CumulativeLogsumexp", LINES, 1, mixed=(1,)),
    **uses("ArgMax ArgMin", LINES, 1, mixed=(1,)),
    **uses("ReverseV2", LINES, [0, -1], mixed=(0, 2)),
    **uses("Roll", LINES, [1, 2], [1, -1], mixed=(1, 2)),
    "Cumsum, backward": Sample(
        lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True), LINES, (0,)
    ),
    "ArgMax of the first": Sample(lambda x: tf.argmax(x, 0, tf.int32), LINES, (0,)),
    "ReduceJoin": Sample(lambda x: tf.strings.reduce_join(as_text(x), -1), LINES, (2,)),
    "ReduceJoin of several": Sample(
        lambda x: tf.strings.reduce_join(as_text(x), [1, 0], separator="+"), LINES, (0, 1)
    ),
    "ReduceJoin, kept": Sample(
        lambda x: tf.strings.reduce_join(as_text(x), 0, keepdims=True), LINES, (0,)
    ),
    "ReduceJoin of all": Sample(
        lambda x: tf.strings.reduce_join(as_text(x), tf.constant([], tf.int32)), LINES, (0, 1, 2)
    ),
    **{
        type_: Sample(
            lambda x, type_=type_, sizes=sizes: raw(
                type_, x if type_.startswith("RFFT") else complex_of(x), *sizes
            ),
            *[[(4, 2, 3, 4)], range(4 - rank, 4)],
        )
        for rank, suffix in ((1, ""), (2, "2D"), (3, "3D"))
        for kind in ("FFT", "IFFT", "RFFT", "IRFFT")
        for type_, sizes in [(kind + suffix, [[2, 3, 4][-rank:]] * ("RFFT" in kind))]
    },
    # ---- matrices and vectors
    **uses("MatrixBandPart", LINES, *tf.constant([1, 0], tf.int64).numpy(), mixed=(1, 2)),
    **uses("MatrixDiag", LINES, mixed=(2,)),
    **uses("MatrixDiagV2 MatrixDiagV3", LINES, 1, -1, -1, 5.0, mixed=(2,)),
    "MatrixDiagV3 of several": Sample(
        lambda x: tf.linalg.diag(x, k=(-1, 1), num_rows=3), [(4, 3, 3)], (1, 2), FIRST
    ),
    **uses("MatrixDiagPart", PLANES, mixed=(2, 3)),
    **uses("MatrixDiagPartV2 MatrixDiagPartV3", PLANES, -1, 5.0, mixed=(2, 3)),
    "MatrixDiagPartV3 of several": Sample(
        lambda x: tf.linalg.diag_part(x, k=(0, 1)), PLANES, (2, 3), (0, 1, 2)
    ),
    **uses("MatrixSetDiag", MATRICES, tried=(0, 1)),
    **uses("MatrixSetDiagV2 MatrixSetDiagV3", MATRICES, 0, tried=(0, 1)),
    "MatrixSetDiagV3 of what it is set to": Sample(
        lambda x: tf.linalg.set_diag(x, 2 * tf.linalg.diag_part(x)), LINES, (1, 2)
    ),
    "MatrixSetDiagV3 of rows": Sample(
        lambda x: tf.linalg.set_diag(x, 2 * x[:, :, 0]), LINES, (1,), (1,), batches=[(3, 1, 1)]
    ),
    **uses("Cross", [(4, 5, 3)] * 2, tried=(0, 1)),
    "Cross along the batch": Sample(
        lambda x, y: raw("Cross", x, y), [(4, 5, 3)] * 2, (2,), (2,), batches=[(3, 1, 1)]
    ),
    # ---- texts
    "DecodeCompressed": of_texts(
        lambda x: tf.io.decode_compressed(
            tf.strings.substr(tf.strings.join([GZIPPED, x]), 0, len(GZIPPED)), "GZIP"
        )
    ),
    "DecodeJSONExample": of_texts(
        lambda x: tf.io.decode_json_example('{"features": {"feature": {"a' + x + '": {}}}}')
    ),
    "DecodePaddedRaw": of_texts(lambda x: tf.io.decode_raw(x, tf.uint8, fixed_length=4)),
    "DecodeRaw": of_texts(lambda x: tf.io.decode_raw(x, tf.int16)),
    "StringToNumber": of_texts(tf.strings.to_number),
    "Substr": of_texts(
        lambda x: tf.strings.substr(x, tf.ones_like(x, tf.int32), tf.strings.length(x))
    ),
    "Substr from the end on": of_texts(lambda x: tf.strings.substr(x, 2, 9), (UNEVEN, NONE)),
    "Substr of columns": Sample(
        lambda x: tf.strings.substr(as_text(x), [0, 1], [1, 0]), [(4, 2)], (), FIRST
    ),
}

# Types that have no kernels for CPUs.
NOT_ON_CPUS = {"Conv2DBackpropInputV2", "MaxPoolGradGradWithArgmax"}


def placed(x, axis, blocks):
    """A batch whose examples are merged with their entries, in blocks, along an axis."""
    merged = tf.reshape(x, [-1, *x.shape[2:]])
    joined = tf.concat([merged + 0.1 * block for block in range(blocks)], 0)
    order = list(range(1, len(joined.shape)))
    return tf.transpose(joined, [*order[:axis], 0, *order[axis:]])


def run(sample, axis, batch, everywhere=None):
    """What replicas report of a sample with its batch along an axis.

    Args:
      sample: The sample.
      axis: The axis.
      batch: How many examples there are, with how many entries each, in how many blocks.
      everywhere: Which of the operands all replicas have whole; None: each has its examples.
    """
    count, entries, blocks = batch

    def function(*batches):
        operands = [placed(each, axis, blocks) for each in batches]
        if everywhere is not None:
            operands[everywhere] = tf.cumsum(operands[everywhere], axis) / 5
        return sample.function(*operands)

    others = ([*shape[:axis], *shape[axis + 1 :]] for shape in sample.shapes)
    batches = [numbers(count, entries, *sizes) for sizes in others]
    return check(function, *batches, replicas=[3], whole=None, tolerance=1e-4)


def axes_of(sample):
    return range(len(sample.shapes[0])) if sample.tried is None else sample.tried


KEPT_IN_MAKE_TEST = ["AvgPool", "ArgMax", "TopKV2", "ReduceJoin", "MatrixSetDiag", "DecodeRaw"]
in_samples = pytest.mark.parametrize("name", tiers.cases(SAMPLES, KEPT_IN_MAKE_TEST))


@in_samples
def test_a_shard_of_an_axis_that_is_not_mixed_is_kept_and_others_are_not(name):
    sample = SAMPLES[name]
    batches = list(sample.batches)
    for axis in axes_of(sample):
        if axis in sample.mixed:
            assert run(sample, axis, sample.batches[0]).whole, f"axis {axis} is mixed"
            continue
        for batch in batches:
            report = run(sample, axis, batch)
            sent = [each for each in report.exchanged if each.why != "it is returned"]
            assert not report.whole and not sent, f"axis {axis}, {batch}: {report.whole} {sent}"
        batches = [UNEVEN]  # of the other axes


several = [name for name, sample in SAMPLES.items() if len(sample.shapes) > 1]


@pytest.mark.parametrize("name", tiers.cases(several, ["MatrixSetDiag", "Cross"]))
def test_of_an_operand_that_all_replicas_have_whole_a_part_is_taken(name):
    sample = SAMPLES[name]
    for axis in axes_of(sample):
        for operand in range(len(sample.shapes)):
            report = run(sample, axis, sample.batches[0], operand)
            if axis not in sample.mixed:
                assert {each.operation for each in report.whole} == {"Cumsum"}


@pytest.mark.parametrize("type_, fill", [("V2", ()), ("V3", (0.5,))])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_one_image_does_not_stand_for_those_of_several_transforms(type_, fill, replicas):
    move = moved(f"ImageProjectiveTransform{type_}", *fill)
    moves, image = numbers(3, 6), numbers(1, 4, 6, 3)
    for run_by in (tf.function, strategy(replicas).partitioned):
        with pytest.raises(tf.errors.InvalidArgumentError, match="ImageProjectiveTransform"):
            run_by(lambda x: move(image, x))(moves)


LINEAR = {type_ for row in TABLE if row.linear is not None for type_ in row.types.split()}


@pytest.mark.parametrize("name", tiers.first_of(*sorted(SAMPLES.keys() & LINEAR)))
def test_what_is_linear_in_a_partial_is_one(name, layouts):
    function = SAMPLES[name].function
    report = check(lambda x: tf.sin(function(tf.reduce_sum(x, 0))), numbers(7, 4, 5, 6))
    assert layouts[name] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


def test_what_is_not_linear_in_a_partial_waits_for_the_sum(layouts):
    check(lambda x: tf.math.cumprod(tf.reduce_sum(x, 0) / 9, 1), numbers(7, 5, 4))
    assert layouts["Cumprod"] == {"replicated"}


@pytest.mark.parametrize("times", [1, 2])
def test_of_pairs_of_examples_without_those_of_one_with_itself_nothing_is_gathered(times):
    def loss(x):
        z = tf.concat([x] * times, 0)
        pairs = z @ tf.transpose(z) - 1e9 * tf.eye(times * tf.shape(x)[0])
        return tf.reduce_mean(tf.nn.softmax(pairs) * pairs)

    report = check(loss, numbers(7, 4), whole={"MatrixDiagV3"})
    gathered = [each.operation for each in report.exchanged if each.kind == "gather"]
    assert gathered == ["MatMul"]  # whose other operand is all rows


def types_in(graph):
    functions = graph.as_graph_def().library.function
    nodes = [*graph.as_graph_def().node, *(node for each in functions for node in each.node_def)]
    return {node.op for node in nodes}


def test_each_type_of_the_table_that_runs_on_cpus_has_a_sample():
    found = set()
    for each in SAMPLES.values():
        specs = [tf.TensorSpec(shape, tf.float32) for shape in each.shapes]
        found |= types_in(tf.function(each.function).get_concrete_function(*specs).graph)
    missing = {type_ for row in TABLE for type_ in row.types.split()} - found
    assert missing == NOT_ON_CPUS


RANDOM = np.random.default_rng(3)
BATCH = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
SMALL_BATCH = BATCH[:2]  # than three replicas
RAW = tf.raw_ops

in_shares = pytest.mark.parametrize("batch", [BATCH, SMALL_BATCH], ids=["uneven", "fewer"])


def lengths(x):
    """Lengths of sequences, one for each example."""
    return tf.argmax(x[:, :, 0], 1, tf.int32) % 5


def whole_numbers(x):
    """Whole numbers from 0 to 4 on every replica, one for each example."""
    return tf.cast(RAW.LinSpace(start=0.0, stop=4.0, num=tf.shape(x)[0]), tf.int32)


KEPT = {
    "ReverseSequence": (lambda x: tf.reverse_sequence(x, lengths(x), 1, 0), "axis 0"),
    "ReverseSequence, turned": (
        lambda x: tf.reverse_sequence(turned(x), lengths(x), 0, 1),
        "axis 1",
    ),
    "ReverseSequence of columns": (
        lambda x: tf.reverse_sequence(x, [2, 1, 3, 4, 4], 2, 1),
        "axis 0",
    ),
    "ReverseSequence of a whole": (
        lambda x: tf.reverse_sequence(tf.ones_like(x[:, 0]), lengths(x) % 4, 1, 0),
        "axis 0",
    ),
    "ReverseSequence of what is whole": (
        lambda x: tf.reverse_sequence(
            tf.stack([whole_numbers(x) * each for each in range(1, 5)]), lengths(x), 0, 1
        ),
        "axis 1",
    ),
    "ReverseSequence by what is whole": (
        lambda x: tf.reverse_sequence(x, whole_numbers(x), 1, 0),
        "axis 0",
    ),
    "LowerBound": (lambda x: tf.searchsorted(tf.sort(x[:, 0]), x[:, 1]), "axis 0"),
    "UpperBound": (lambda x: tf.searchsorted(tf.sort(x), x[..., :2], "right"), "axis 0, inner 5"),
    "UpperBound of the batch": (
        lambda x: tf.searchsorted([0.0, 1.0, 3.0], x[:, 0, 1], "right"),
        "axis 1",
    ),
}


@in_shares
@pytest.mark.parametrize("case", KEPT)
def test_an_operation_along_another_axis_keeps_the_cut(case, batch, layouts):
    function, cut = KEPT[case]
    report = check(function, batch, replicas=[3], exact=True)
    assert f"sharded({cut})" in cuts(layouts, re.match(r"\w+", case)[0])
    assert not report.exchanged


WHOLE = {
    "ReverseSequence": lambda x: tf.reverse_sequence(x, [2, 1, 3, 4, 7], 0, 1),
    "LowerBound": lambda x: RAW.LowerBound(sorted_inputs=x[None, :, 0, 0], values=[[1.0, 2.0]]),
}


@pytest.mark.parametrize("type_", WHOLE)
def test_an_operation_along_the_batch_is_computed_whole(type_):
    check(WHOLE[type_], BATCH, whole=[type_])


def test_what_is_cut_and_needed_by_all_examples_is_gathered():
    def function(x):
        pairs = x[:, tf.newaxis, 0] + x[tf.newaxis, :, 1]
        rising = tf.exp(tf.cast(tf.range(tf.shape(x)[0]), tf.float32) / 3)
        return (
            tf.reverse_sequence(pairs, lengths(x), 2, 1),
            RAW.UpperBound(sorted_inputs=rising[None], values=x[None, :, 0, 0]),
        )

    report = check(function, BATCH, replicas=[3])
    assert {"ReverseSequence", "UpperBound"} <= {each.operation for each in report.exchanged}


@sample(lambda length: BATCH[:length], sends=["sum"], layouts={"ReverseSequence": {"partial"}})
def test_a_partial_is_reversed_by_each_replica(x):
    total = tf.reduce_sum(x, 0)
    return tf.sin(tf.reverse_sequence(total, [1, 2, 3, 1, 0], 1, 0))


@of_drawn_batches
def test_any_operation_along_an_axis_is_that_of_one_device_wherever_the_batch_is(case):
    axis = case.choose([*case.others, case.axis])
    other = case.choose(range(case.rank))

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        found = []
        if axis != other:
            sizes = tf.cast(
                tf.reduce_max(t, [at for at in range(case.rank) if at != other]), "int32"
            )
            along = sizes % (case.shape[axis] + 1)
            found += [tf.reverse_sequence(each, along, axis, other) for each in (t, whole)]
        rows = tf.reshape(t, [-1, case.shape[-1]])
        all_rows = tf.reshape(whole, [-1, case.shape[-1]])
        for one, values in ((rows, all_rows), (all_rows, rows), (rows, rows)):
            found += [
                tf.searchsorted(tf.sort(one), values),
                tf.searchsorted([[2.0, 9.0, 30.0]], tf.reshape(values, [1, -1]), "right"),
            ]
        return found

    case.check(function, exact=True)
