"""Each type of the table, with its batch along each axis, in shards of many kinds."""

import dataclasses
import functools
import gzip
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf
import tiers
from partition.check import check
from partition.examples import gradients, numbers

from tfdp.partition.rules.kept_shards import TABLE

RAW = tf.raw_ops

# Examples, entries of each and blocks of all along the batch's axis, on three replicas.
UNEVEN, FEWER, MERGED, NONE = (7, 1, 1), (2, 1, 1), (4, 2, 2), (0, 1, 1)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A use of an operation.

    Attributes:
      function: A function of operands.
      shapes: Their shapes; along the batch's axis each has other sizes.
      mixed: The axes along which the operation mixes entries.
      tried: The axes that the batch is along.
      gradients: Whether its gradients are asked for, too.
      batches: Examples, entries of each and blocks.
    """

    function: Callable
    shapes: Sequence[Sequence[int]]
    mixed: Sequence[int] = ()
    tried: Sequence[int] | None = None
    gradients: bool = False
    batches: Sequence[tuple[int, int, int]] = (UNEVEN, FEWER, MERGED)

    @property
    def traced(self):
        """The function, or what gives its gradients, too."""
        return functools.partial(gradients, self.function) if self.gradients else self.function


def of_images(function, *shapes, grads=True, **options):
    """A use of which the first operand's first axis counts images."""
    options = {"tried": (0, 1), "mixed": (1,), **options}
    return Sample(function, shapes or [(4, 4, 6, 3)], gradients=grads, **options)


def of_three_axes(function, *mixed, **options):
    return Sample(function, [(4, 5, 6)], mixed=mixed, **options)


def of_texts(function):
    """A use of texts, one of each number; of none, too."""
    return Sample(
        lambda x: function(as_text(x)),
        [(4, 2)],
        batches=(UNEVEN, FEWER, MERGED, NONE),
    )


def as_text(x):
    return tf.strings.as_string(tf.cast(10 * x, tf.int32))


def complex_of(x):
    return tf.complex(x, 2 * x)


def magnitude(transform, make=complex_of):
    return lambda x: tf.abs(transform(make(x)))


def second(function):
    return lambda x: gradients(function, x)[1]


def resized(kind, **options):
    return of_images(lambda x: kind(images=x, size=[7, 9], **options))


def pooled(x):
    return RAW.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def transformed(kind, **options):
    return lambda x, moves: kind(
        images=x,
        transforms=tf.concat([moves, tf.zeros_like(moves[:, :2])], 1),
        output_shape=[5, 4],
        interpolation="BILINEAR",
        **options,
    )


def classes(x, count):
    return tf.cast(10 * x, tf.int32) % count


def boxed(kind, **options):
    return of_images(
        lambda x, boxes: kind(images=x, boxes=boxes * [0.1, 0.2, 0.5, 0.6], **options),
        *[(4, 4, 6, 3), (4, 2, 4)],
        grads=False,
    )


def of_rows_of_two_axes(x):
    options = {"strides": [1] * 4, "dilations": [1] * 4, "padding": "SAME", "batch_dims": 2}
    return RAW.Conv(input=x, filter=numbers(3, 3, 2, 4), **options)


def diagonals(kind, first, k, **options):
    return lambda x: kind(k=k, **{first: x}, **options)


PADDED = {"num_rows": -1, "num_cols": -1, "padding_value": 5.0}
SPACE = (4, 4, 4, 6, 3)
GZIPPED = gzip.compress(b"Ab", mtime=0)

SAMPLES = {
    "AvgPool": of_images(lambda x: tf.nn.avg_pool2d(x, 2, 1, "SAME")),
    "AvgPool3D": of_images(lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME"), SPACE),
    "Conv2D": of_images(lambda x: tf.nn.conv2d(x, numbers(2, 2, 3, 2), 1, "SAME"), grads=False),
    "Conv2D, dilated": of_images(
        lambda x: tf.nn.conv2d(x, numbers(2, 2, 3, 2), 1, "SAME", dilations=2), grads=False
    ),
    "Conv2D, in groups": of_images(
        lambda x: tf.nn.conv2d(x, numbers(2, 2, 1, 6), 1, "SAME"), grads=False
    ),
    "Conv3D": of_images(
        lambda x: tf.nn.conv3d(x, numbers(2, 2, 2, 3, 2), [1] * 5, "SAME"), SPACE, grads=False
    ),
    "DepthToSpace": of_images(lambda x: tf.nn.depth_to_space(x, 2), (4, 4, 6, 4)),
    "DepthwiseConv2dNative": of_images(
        lambda x: tf.nn.depthwise_conv2d(x, numbers(2, 2, 3, 2), [1] * 4, "SAME"), grads=False
    ),
    "Dilation2D": of_images(
        lambda x: tf.nn.dilation2d(x, numbers(2, 2, 3), [1] * 4, "SAME", "NHWC", [1] * 4)
    ),
    "ExtractImagePatches": of_images(
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1] * 4, [1] * 4, "SAME")
    ),
    "ExtractVolumePatches": of_images(
        lambda x: tf.extract_volume_patches(x, [1, 2, 2, 2, 1], [1] * 5, "SAME"),
        SPACE,
        grads=False,
    ),
    "LRN": of_images(lambda x: tf.nn.local_response_normalization(x, 1, 1.0, 0.5, 0.7)),
    "MaxPool": of_images(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")),
    "MaxPoolGradGrad": of_images(second(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"))),
    "MaxPool3D": of_images(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), SPACE),
    "MaxPool3DGradGrad": of_images(second(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME")), SPACE),
    "MaxPoolV2": of_images(pooled),
    "MaxPoolGradGradV2": of_images(second(pooled)),
    "MaxPoolWithArgmax": of_images(lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")[0]),
    "MaxPoolWithArgmax, its places": of_images(
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")[1], grads=False, tried=(0,)
    ),
    "MaxPoolWithArgmax through the batch": of_images(
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME", include_batch_in_index=True)[1],
        grads=False,
        mixed=(0, 1),
    ),
    "ResizeArea": of_images(lambda x: tf.image.resize(x, [7, 9], "area"), grads=False),
    "ResizeBicubic": resized(RAW.ResizeBicubic),
    "ResizeBilinear": resized(RAW.ResizeBilinear, half_pixel_centers=True),
    "ResizeNearestNeighbor": resized(RAW.ResizeNearestNeighbor),
    "ScaleAndTranslate": of_images(
        lambda x: tf.image.resize(x, [7, 9], "lanczos3", antialias=True)
    ),
    "SpaceToDepth": of_images(lambda x: tf.nn.space_to_depth(x, 2), tried=(0,)),
    "DrawBoundingBoxes": boxed(RAW.DrawBoundingBoxes),
    "DrawBoundingBoxesV2": boxed(RAW.DrawBoundingBoxesV2, colors=[[1.0, 0.0, 0.5]]),
    "FractionalMaxPoolGrad": of_images(
        lambda x, y: RAW.FractionalMaxPoolGrad(
            orig_input=x,
            orig_output=x,
            out_backprop=y,
            row_pooling_sequence=tf.range(5, dtype=tf.int64),
            col_pooling_sequence=tf.range(7, dtype=tf.int64),
        ),
        *[(4, 4, 6, 3)] * 2,
        grads=False,
        tried=(0,),
    ),
    "ImageProjectiveTransformV2": of_images(
        transformed(RAW.ImageProjectiveTransformV2), (4, 4, 6, 3), (4, 6), grads=False, tried=(0,)
    ),
    "ImageProjectiveTransformV3": of_images(
        transformed(RAW.ImageProjectiveTransformV3, fill_mode="NEAREST", fill_value=0.0),
        *[(4, 4, 6, 3), (4, 6)],
        grads=False,
        tried=(0,),
    ),
    "ImageProjectiveTransformV3, one for all": of_images(
        lambda x: transformed(RAW.ImageProjectiveTransformV3, fill_mode="WRAP", fill_value=0.0)(
            x, tf.constant([[1.0, 0.1, 0.2, 0.3, 1.0, 0.4]])
        )
    ),
    "CropAndResize": of_images(
        lambda boxes: RAW.CropAndResize(
            image=numbers(2, 4, 5, 3),
            boxes=boxes / 2,
            box_ind=classes(boxes[:, 0], 2),
            crop_size=[2, 3],
        ),
        (4, 4),
        grads=False,
        tried=(0,),
    ),
    "Conv": Sample(of_rows_of_two_axes, [(4, 3, 4, 5, 2)], mixed=(2, 3), tried=(0, 1, 2, 3)),
    "AdjustContrastv2": of_images(
        lambda x: tf.image.adjust_contrast(x, 0.3), grads=False, tried=(0, 1, 2), mixed=(1, 2)
    ),
    **{
        kind: of_images(function, grads=False, tried=(0, 1, 2), mixed=())
        for kind, function in {
            "AdjustHue": lambda x: tf.image.adjust_hue(x / 2, 0.3),
            "AdjustSaturation": lambda x: tf.image.adjust_saturation(x / 2, 0.3),
            "HSVToRGB": lambda x: tf.image.hsv_to_rgb(x / 2),
            "RGBToHSV": lambda x: tf.image.rgb_to_hsv(x / 2),
        }.items()
    },
    "RGBToHSV of colors": Sample(
        lambda x: RAW.RGBToHSV(images=x), [(4, 5, 3)], (2,), (2,), batches=[(3, 1, 1)]
    ),
    "BiasAdd": Sample(lambda x: tf.nn.bias_add(x, numbers(3)), [(4, 5, 3)], tried=(0, 1)),
    "BiasAdd, channels in front": Sample(
        lambda x: RAW.BiasAdd(value=x, bias=numbers(3), data_format="NCHW"),
        *[[(4, 3, 5, 6)], (3,), (0, 2, 3)],
    ),
    "BiasAdd of examples": Sample(lambda x: tf.nn.bias_add(x, x[0]), [(5, 4)], (1,), (1,)),
    "BiasAddV1": Sample(
        lambda x: RAW.BiasAddV1(value=x, bias=numbers(3)), [(4, 5, 3)], tried=(0, 1)
    ),
    "Softmax": of_three_axes(tf.nn.softmax, 2),
    "LogSoftmax": of_three_axes(tf.nn.log_softmax, 2),
    "NthElement": of_three_axes(lambda x: RAW.NthElement(input=x, n=1), 2),
    "TopK": of_three_axes(lambda x: RAW.TopK(input=x, k=2), 2),
    "TopKV2": of_three_axes(lambda x: tf.math.top_k(x, 2), 2),
    "TopKV2 of the batch's length": of_three_axes(
        lambda x: tf.math.top_k(x, tf.shape(x)[1] - 1), 2
    ),
    "InTopK": Sample(
        lambda x, y: RAW.InTopK(predictions=x, targets=classes(y, 5), k=2), [(4, 5), (4,)], (), (0,)
    ),
    "InTopKV2": Sample(
        lambda x, y: tf.math.in_top_k(classes(y, 5), x, 2), [(4, 5), (4,)], (), (0,)
    ),
    "InTopKV2 of classes": Sample(
        lambda x: tf.math.in_top_k([1, 0, 1, 0], x, 1), [(4, 5)], (1,), (1,)
    ),
    "SparseSoftmaxCrossEntropyWithLogits": Sample(
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(classes(y, 5), x),
        *[[(4, 5), (4,)], (), (0,), True],
    ),
    "SoftmaxCrossEntropyWithLogits": Sample(
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y / 5, x),
        *[[(4, 5), (4, 5)], (1,), (0, 1), True],
    ),
    "SoftmaxCrossEntropyWithLogits, targets of all": Sample(
        lambda x: list(RAW.SoftmaxCrossEntropyWithLogits(features=x, labels=numbers(1, 5))),
        *[[(4, 5)], (), (0,)],
    ),
    "SoftmaxCrossEntropyWithLogits, logits of all": Sample(
        lambda x: list(RAW.SoftmaxCrossEntropyWithLogits(features=numbers(1, 5), labels=x)),
        *[[(4, 5)], (), (0,)],
    ),
    "Cumsum": of_three_axes(lambda x: tf.cumsum(x, -1), 2),
    "Cumsum, backward": of_three_axes(lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True), 0),
    "ReverseV2": of_three_axes(lambda x: tf.reverse(x, [1, -1]), 1, 2),
    "Roll": of_three_axes(lambda x: tf.roll(x, [1, 2], [1, -1]), 1, 2),
    "Roll by one": of_three_axes(lambda x: tf.roll(x, 2, 0), 0),
    "Cumprod": of_three_axes(lambda x: tf.math.cumprod(x, 1), 1),
    "CumulativeLogsumexp": of_three_axes(lambda x: tf.math.cumulative_logsumexp(x, -1), 2),
    "ArgMax": of_three_axes(lambda x: tf.argmax(x, 1), 1),
    "ArgMax of the last": of_three_axes(lambda x: tf.argmax(x, -1), 2),
    "ArgMin": of_three_axes(lambda x: tf.argmin(x, 0, tf.int32), 0),
    "ReduceJoin": of_three_axes(lambda x: tf.strings.reduce_join(as_text(x), -1, separator="+"), 2),
    "ReduceJoin, kept": of_three_axes(
        lambda x: tf.strings.reduce_join(as_text(x), [1, 0], keepdims=True), 0, 1
    ),
    "ReduceJoin of the first": of_three_axes(
        lambda x: tf.strings.reduce_join(as_text(x), 0, separator="+"), 0
    ),
    "ReduceJoin of all": of_three_axes(
        lambda x: tf.strings.reduce_join(as_text(x), tf.constant([], tf.int32)), 0, 1, 2
    ),
    "FFT": of_three_axes(magnitude(tf.signal.fft), 2, gradients=True),
    "IFFT": of_three_axes(magnitude(tf.signal.ifft), 2, gradients=True),
    "RFFT": of_three_axes(magnitude(lambda x: tf.signal.rfft(x, [8]), tf.identity), 2),
    "IRFFT": of_three_axes(magnitude(tf.signal.irfft), 2, gradients=True),
    "FFT2D": of_three_axes(magnitude(tf.signal.fft2d), 1, 2, gradients=True),
    "IFFT2D": of_three_axes(magnitude(tf.signal.ifft2d), 1, 2, gradients=True),
    "RFFT2D": of_three_axes(magnitude(tf.signal.rfft2d, tf.identity), 1, 2),
    "IRFFT2D": of_three_axes(magnitude(tf.signal.irfft2d), 1, 2, gradients=True),
    "FFT3D": Sample(magnitude(tf.signal.fft3d), [(4, 2, 3, 4)], (1, 2, 3)),
    "IFFT3D": Sample(magnitude(tf.signal.ifft3d), [(4, 2, 3, 4)], (1, 2, 3)),
    "RFFT3D": Sample(
        lambda x: tf.abs(RAW.RFFT3D(input=x, fft_length=[2, 3, 4])), [(4, 2, 3, 4)], (1, 2, 3), (0,)
    ),
    "IRFFT3D": Sample(
        lambda x: RAW.IRFFT3D(input=complex_of(x), fft_length=[2, 3, 4]),
        *[[(4, 2, 3, 3)], (1, 2, 3), (0,)],
    ),
    "MatrixBandPart": of_three_axes(lambda x: tf.linalg.band_part(x, 1, 0), 1, 2),
    "MatrixDiag": of_three_axes(lambda x: RAW.MatrixDiag(diagonal=x), 2),
    "MatrixDiagV2": of_three_axes(diagonals(RAW.MatrixDiagV2, "diagonal", 1, **PADDED), 2),
    "MatrixDiagV3": of_three_axes(lambda x: tf.linalg.diag(x, k=-2, padding_value=5), 2),
    "MatrixDiagV3 of several": Sample(
        lambda x: tf.linalg.diag(x, k=(-1, 1), num_rows=3), [(4, 3, 3)], (1, 2), (0,)
    ),
    "MatrixDiagPart": Sample(lambda x: RAW.MatrixDiagPart(input=x), [(4, 5, 6, 3)], (2, 3)),
    "MatrixDiagPartV2": Sample(
        diagonals(RAW.MatrixDiagPartV2, "input", 0, padding_value=5.0), [(4, 5, 6, 3)], (2, 3)
    ),
    "MatrixDiagPartV3": Sample(lambda x: tf.linalg.diag_part(x, k=-1), [(4, 5, 6, 3)], (2, 3)),
    "MatrixDiagPartV3 of several": Sample(
        lambda x: tf.linalg.diag_part(x, k=(0, 1)), [(4, 5, 6, 3)], (2, 3)
    ),
    "MatrixSetDiag": Sample(
        lambda x, y: RAW.MatrixSetDiag(input=x, diagonal=y), [(4, 3, 5, 5), (4, 3, 5)], (), (0, 1)
    ),
    "MatrixSetDiagV2": Sample(
        lambda x, y: RAW.MatrixSetDiagV2(input=x, diagonal=y, k=0),
        *[[(4, 3, 5, 5), (4, 3, 5)], (), (0, 1)],
    ),
    "MatrixSetDiagV3": Sample(tf.linalg.set_diag, [(4, 3, 5, 5), (4, 3, 5)], (), (0, 1)),
    "MatrixSetDiagV3 of what it is set to": Sample(
        lambda x: tf.linalg.set_diag(x, 2 * tf.linalg.diag_part(x)), [(4, 5, 6)], (1, 2)
    ),
    "Cross": Sample(lambda x, y: RAW.Cross(a=x, b=y), [(4, 5, 3)] * 2, (), (0, 1)),
    "Cross along the batch": Sample(
        lambda x, y: RAW.Cross(a=x, b=y), [(4, 5, 3)] * 2, (2,), (2,), batches=[(3, 1, 1)]
    ),
    "DecodeCompressed": of_texts(
        lambda x: tf.io.decode_compressed(
            tf.strings.substr(tf.strings.join([GZIPPED, x]), 0, len(GZIPPED)), "GZIP"
        )
    ),
    "DecodeCompressed of what is not": of_texts(lambda x: tf.io.decode_compressed(x, "")),
    "DecodeJSONExample": of_texts(
        lambda x: tf.io.decode_json_example(
            tf.strings.join(['{"features": {"feature": {"a', x, '": {}}}}'])
        )
    ),
    "DecodePaddedRaw": of_texts(lambda x: tf.io.decode_raw(x, tf.uint8, fixed_length=4)),
    "DecodeRaw": of_texts(lambda x: tf.io.decode_raw(tf.strings.substr(x + "ne", 0, 2), tf.int16)),
    "StringToNumber": of_texts(tf.strings.to_number),
    "Substr": of_texts(
        lambda x: tf.strings.substr(x + "ab", tf.ones_like(x, tf.int32), tf.strings.length(x))
    ),
    "Substr from a place on": of_texts(lambda x: tf.strings.substr(x + "ab", 2, 9)),
    "Substr from the end on": Sample(
        lambda x: tf.strings.substr(as_text(2 * x), 2, 9), [(4, 2)], batches=(UNEVEN, NONE)
    ),
    "Substr of columns": Sample(
        lambda x: tf.strings.substr(as_text(x), [0, 1], [1, 0]), [(4, 2)], tried=(0,)
    ),
}


# Types that have no kernels for CPUs.
NOT_ON_CPUS = {
    *("BatchFFT", "BatchFFT2D", "BatchFFT3D", "BatchIFFT", "BatchIFFT2D", "BatchIFFT3D"),
    *("Conv2DBackpropInputV2", "MaxPoolGradGradWithArgmax"),
}


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
        return sample.traced(*operands)

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
            report = run(sample, axis, UNEVEN, operand)
            if axis not in sample.mixed:
                assert {each.operation for each in report.whole} == {"Cumsum"}


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
    for sample in SAMPLES.values():
        function, specs = (
            sample.traced,
            [tf.TensorSpec(shape, tf.float32) for shape in sample.shapes],
        )
        found |= types_in(tf.function(function).get_concrete_function(*specs).graph)
    missing = {type_ for row in TABLE for type_ in row.types.split()} - found
    assert missing == NOT_ON_CPUS
