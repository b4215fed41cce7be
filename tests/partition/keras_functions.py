"""Keras's functions, each with what it is given."""

import functools
import inspect

import keras
import tensorflow as tf
from partition.keras_tracing import (
    COMPLEX,
    IDS,
    IMAGES,
    LABELS,
    NUMBERS,
    SEQUENCES,
    SQUARES,
    VECTORS,
    VOLUMES,
    first_of,
    spec,
    traced,
)

_X = SEQUENCES
_FUNCTIONS = {
    "adaptive_average_pool": (lambda x: keras.ops.adaptive_average_pool(x, 2), IMAGES),
    "adaptive_max_pool": (lambda x: keras.ops.adaptive_max_pool(x, 2), IMAGES),
    "arange": (lambda x: keras.ops.arange(keras.ops.shape(x)[0]), _X),
    "argpartition": (lambda x: keras.ops.argpartition(x, 2), _X),
    "array_split": (lambda x: keras.ops.array_split(x, 3, axis=1), _X),
    "associative_scan": (lambda x: keras.ops.associative_scan(lambda a, b: a + b, x, axis=1), _X),
    "average_pool": (lambda x: keras.ops.average_pool(x, 2), IMAGES),
    "batch_normalization": (
        lambda x: keras.ops.batch_normalization(x, tf.ones(4), tf.ones(4), -1),
        _X,
    ),
    "bincount": (lambda x: keras.ops.bincount(x, minlength=5), IDS),
    "broadcast_to": (lambda x: keras.ops.broadcast_to(x, (2, *x.shape[1:])), tf.TensorSpec([1, 3])),
    "cast": (lambda x: keras.ops.cast(x, "float16"), _X),
    "cdist": (keras.ops.__dict__.get("cdist"), _X, _X),
    "clip": (lambda x: keras.ops.clip(x, 0.0, 1.0), _X),
    "cond": (lambda x: keras.ops.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2 * x), _X),
    "conv": (lambda x: keras.ops.conv(x, tf.ones([2, 2, 3, 4])), IMAGES),
    "conv_transpose": (
        lambda x: keras.ops.conv_transpose(x, tf.ones([2, 2, 4, 3]), 2),
        IMAGES,
    ),
    "correlate": (keras.ops.correlate, NUMBERS, NUMBERS),
    "cross": (keras.ops.cross, spec(3), spec(3)),
    "ctc_decode": (lambda x: keras.ops.ctc_decode(x, tf.fill([tf.shape(x)[0]], 8)), spec(8, 5)),
    "ctc_decode, beam": (
        lambda x: keras.ops.ctc_decode(x, tf.fill([tf.shape(x)[0]], 8), strategy="beam_search"),
        spec(8, 5),
    ),
    "ctc_loss": (
        keras.ops.ctc_loss,
        spec(4, dtype=tf.int32),
        spec(8, 5),
        LABELS,
        LABELS,
    ),
    "depth_to_space": (lambda x: keras.ops.depth_to_space(x, 2), spec(4, 4, 4)),
    "space_to_depth": (lambda x: keras.ops.space_to_depth(x, 2), spec(4, 4, 4)),
    "depthwise_conv": (lambda x: keras.ops.depthwise_conv(x, tf.ones([2, 2, 3, 2])), IMAGES),
    "separable_conv": (
        lambda x: keras.ops.separable_conv(x, tf.ones([2, 2, 3, 2]), tf.ones([1, 1, 6, 4])),
        IMAGES,
    ),
    "diag": (keras.ops.diag, NUMBERS),
    "dot_product_attention": (keras.ops.dot_product_attention, *([spec(4, 2, 3)] * 3)),
    "einsum": (lambda x, y: keras.ops.einsum("abc,abd->acd", x, y), _X, _X),
    "einsum, over the batch": (lambda x, y: keras.ops.einsum("abc,adc->bd", x, y), _X, _X),
    "extract_sequences": (lambda x: keras.ops.extract_sequences(x, 4, 2), spec(16)),
    "eye": (lambda x: keras.ops.eye(4), _X),
    "fft": (lambda x, y: keras.ops.fft((x, y)), spec(8), spec(8)),
    "fft2": (lambda x, y: keras.ops.fft2((x, y)), SQUARES, SQUARES),
    "ifft2": (lambda x, y: keras.ops.ifft2((x, y)), SQUARES, SQUARES),
    "fold": (lambda x: keras.ops.fold(x, (4, 4), 2), spec(4, 9)),
    "unfold": (lambda x: keras.ops.unfold(x, 2), tf.TensorSpec([5, 3, 4, 4])),
    "fori_loop": (lambda x: keras.ops.fori_loop(0, 3, lambda i, a: 2 * a, x), _X),
    "full": (lambda x: keras.ops.full(keras.ops.shape(x), 2.0), _X),
    "geomspace": (lambda x: keras.ops.geomspace(x, 9.0, 5), _X),
    "get_item": (lambda x: keras.ops.get_item(x, (slice(None), 1)), _X),
    "histogram": (lambda x: keras.ops.histogram(x, 4), NUMBERS),
    "identity": (lambda x: keras.ops.identity(4), _X),
    "in_top_k": (lambda t, p: keras.ops.in_top_k(t, p, 2), LABELS, spec(5)),
    "irfft": (lambda x, y: keras.ops.irfft((x, y)), spec(5), spec(5)),
    "istft": (lambda x, y: keras.ops.istft((x, y), 32, 16, 32), spec(5, 17), spec(5, 17)),
    "jvp": (lambda x: keras.ops.jvp(lambda a: a * a, (x,), (x,)), _X),
    "layer_normalization": (
        lambda x: keras.ops.layer_normalization(x, tf.ones(4), tf.ones(4)),
        _X,
    ),
    "linspace": (lambda x: keras.ops.linspace(x, x + 1, 5), _X),
    "logspace": (lambda x: keras.ops.logspace(x, x + 1, 5), _X),
    "lstsq": (keras.ops.lstsq, tf.TensorSpec([5, 3]), tf.TensorSpec([5, 2])),
    "map": (lambda x: keras.ops.map(lambda a: 2 * a, x), _X),
    "max_pool": (lambda x: keras.ops.max_pool(x, 2), IMAGES),
    "meshgrid": (keras.ops.meshgrid, NUMBERS, NUMBERS),
    "moments": (lambda x: keras.ops.moments(x, [0]), _X),
    "multi_hot": (lambda x: keras.ops.multi_hot(x, 5), IDS),
    "one_hot": (lambda x: keras.ops.one_hot(x, 5), IDS),
    "ones": (lambda x: keras.ops.ones(keras.ops.shape(x)), _X),
    "zeros": (lambda x: keras.ops.zeros(keras.ops.shape(x)), _X),
    "empty": (lambda x: keras.ops.empty(keras.ops.shape(x)), _X),
    "norm, nuclear": (lambda x: keras.ops.norm(x, "nuc", axis=(1, 2)), SQUARES),
    "pad": (lambda x: keras.ops.pad(x, [[0, 0], [1, 1], [0, 0]]), _X),
    "pad, reflect": (lambda x: keras.ops.pad(x, [[0, 0], [1, 1], [0, 0]], mode="reflect"), _X),
    "percentile": (lambda x: keras.ops.percentile(x, 30, axis=0), _X),
    "quantile": (lambda x: keras.ops.quantile(x, 0.3, axis=0), _X),
    "psnr": (lambda x, y: keras.ops.psnr(x, y, 1.0), _X, _X),
    "rearrange": (lambda x: keras.ops.rearrange(x, "a b c -> a c b"), _X),
    "repeat": (lambda x: keras.ops.repeat(x, 2, axis=0), _X),
    "reshape": (lambda x: keras.ops.reshape(x, (-1, 4)), _X),
    "roll": (lambda x: keras.ops.roll(x, 1, axis=0), _X),
    "scan": (lambda x: keras.ops.scan(lambda a, b: (a + b, a), tf.zeros([8, 4]), x), _X),
    "scatter": (lambda i, x: keras.ops.scatter(i, x, (5,)), spec(1, dtype=tf.int32), NUMBERS),
    "scatter_update": (
        lambda x, i, u: keras.ops.scatter_update(x, i, u),
        NUMBERS,
        spec(1, dtype=tf.int32),
        NUMBERS,
    ),
    "searchsorted": (lambda x: keras.ops.searchsorted(tf.range(5.0), x), VECTORS),
    "digitize": (lambda x: keras.ops.digitize(x, [0.0, 1.0]), VECTORS),
    "select": (lambda x: keras.ops.select([x > 0, x > 1], [x, 2 * x], 0.0), _X),
    "slice": (lambda x: keras.ops.slice(x, (0, 1, 0), (2, 2, 2)), _X),
    "slice_update": (
        lambda x: keras.ops.slice_update(x, (0, 1, 0), tf.ones([1, 2, 2])),
        _X,
    ),
    "solve": (keras.ops.solve, SQUARES, SQUARES),
    "solve_triangular": (keras.ops.solve_triangular, SQUARES, SQUARES),
    "split": (lambda x: keras.ops.split(x, 2, axis=1), _X),
    "hsplit": (lambda x: keras.ops.hsplit(x, 2), _X),
    "dsplit": (lambda x: keras.ops.dsplit(x, 2), _X),
    "vsplit": (lambda x: keras.ops.vsplit(x, 2), tf.TensorSpec([4, 4])),
    "unstack": (lambda x: keras.ops.unstack(x, axis=1), _X),
    "sparse_categorical_crossentropy": (
        lambda t, p: keras.ops.sparse_categorical_crossentropy(t, p, from_logits=True),
        LABELS,
        spec(5),
    ),
    "squeeze": (lambda x: keras.ops.squeeze(x, 1), spec(1, 4)),
    "stft": (lambda x: keras.ops.stft(x, 32, 16, 32), spec(128)),
    "rfft": (keras.ops.rfft, spec(8)),
    "switch": (lambda i, x: keras.ops.switch(i[0], [lambda a: a, lambda a: 2 * a], x), LABELS, _X),
    "take": (lambda x: keras.ops.take(x, [0, 1], axis=1), _X),
    "take, rows": (lambda x, i: keras.ops.take(x, i, axis=0), _X, LABELS),
    "take_along_axis": (
        lambda x, i: keras.ops.take_along_axis(x, i, axis=1),
        _X,
        spec(8, 4, dtype=tf.int32),
    ),
    "tensordot": (lambda x, y: keras.ops.tensordot(x, y, axes=[[0, 1], [0, 1]]), _X, _X),
    "tile": (lambda x: keras.ops.tile(x, [1, 2, 1]), _X),
    "top_k": (lambda x: keras.ops.top_k(x, 2), _X),
    "tri": (lambda x: keras.ops.tri(4), _X),
    "threshold": (lambda x: keras.ops.threshold(x, 0.5, 0.0), _X),
    "trace": (lambda x: keras.ops.trace(x, axis1=1, axis2=2), SQUARES),
    "unique": (lambda x: keras.ops.unique(x), LABELS),
    "unravel_index": (lambda x: keras.ops.unravel_index(x, (3, 4)), LABELS),
    "vander": (lambda x: keras.ops.vander(x, 3), NUMBERS),
    "vectorized_map": (lambda x: keras.ops.vectorized_map(lambda a: 2 * a, x), _X),
    "view": (lambda x: keras.ops.view(x, "int32"), _X),
    "view_as_complex": (keras.ops.__dict__.get("view_as_complex"), spec(4, 2)),
    "view_as_real": (keras.ops.__dict__.get("view_as_real"), COMPLEX),
    "where": (lambda x: keras.ops.where(x > 0, x, 0.0), _X),
    "where, indices": (lambda x: keras.ops.where(x > 0), _X),
    "while_loop": (
        lambda x: keras.ops.while_loop(lambda a: tf.reduce_sum(a) < 9, lambda a: (a + 1,), (x,)),
        _X,
    ),
    "segment_max": (lambda x, i: keras.ops.segment_max(x, i, 5), _X, LABELS),
    "segment_min": (lambda x, i: keras.ops.segment_min(x, i, 5), _X, LABELS),
    "segment_prod": (lambda x, i: keras.ops.segment_prod(x, i, 5), _X, LABELS),
    "segment_sum": (lambda x, i: keras.ops.segment_sum(x, i, 5), _X, LABELS),
    "logical_not": (keras.ops.logical_not, spec(4, dtype=tf.bool)),
    "blackman": (lambda x: keras.ops.blackman(8) * x, spec(8)),
    "hamming": (lambda x: keras.ops.hamming(8) * x, spec(8)),
    "hanning": (lambda x: keras.ops.hanning(8) * x, spec(8)),
    "kaiser": (lambda x: keras.ops.kaiser(8, 14.0) * x, spec(8)),
    "expand_dims": (lambda x: keras.ops.expand_dims(x, 1), _X),
    "gcd": (keras.ops.__dict__.get("gcd"), *[tf.TensorSpec([6], tf.int32)] * 2),
    "lcm": (keras.ops.__dict__.get("lcm"), *[tf.TensorSpec([6], tf.int32)] * 2),
    "lu_factor": (keras.ops.lu_factor, tf.TensorSpec([4, 4])),
    "moveaxis": (lambda x: keras.ops.moveaxis(x, 1, 2), _X),
    "saturate_cast": (lambda x: keras.ops.saturate_cast(x, "uint8"), _X),
    "stack": (lambda x: keras.ops.stack([x, x], 1), _X),
    "affine_transform": (lambda x, t: keras.ops.image.affine_transform(x, t), IMAGES, spec(8)),
    "crop_images": (lambda x: keras.ops.image.crop_images(x, 1, 1, 1, 1), IMAGES),
    "elastic_transform": (
        lambda x: keras.ops.image.elastic_transform(x, seed=_generator()),
        IMAGES,
    ),
    "extract_patches": (lambda x: keras.ops.image.extract_patches(x, 2), IMAGES),
    "extract_patches_3d": (lambda x: keras.ops.image.extract_patches_3d(x, 2), VOLUMES),
    "gaussian_blur": (lambda x: keras.ops.image.gaussian_blur(x), IMAGES),
    "map_coordinates": (
        lambda x, y: keras.ops.image.map_coordinates(x, [y, y], 1),
        tf.TensorSpec([8, 8]),
        NUMBERS,
    ),
    "pad_images": (lambda x: keras.ops.image.pad_images(x, 1, 1, 1, 1), IMAGES),
    "perspective_transform": (
        lambda x, a: keras.ops.image.perspective_transform(x, a, a),
        IMAGES,
        spec(4, 2),
    ),
    "resize": (lambda x: keras.ops.image.resize(x, (5, 5)), IMAGES),
    "ssim": (lambda x, y: keras.ops.image.ssim(x, y, 1.0), spec(12, 12, 3), spec(12, 12, 3)),
    "scale_and_translate": (
        lambda x: keras.ops.image.scale_and_translate(
            x, (3, 5, 5, 3), tf.ones(2), tf.ones(2), (1, 2), "linear"
        ),
        tf.TensorSpec([3, 8, 8, 3]),
    ),
    "gamma": (lambda x: keras.random.gamma(keras.ops.shape(x), 2.0, seed=1), _X),
    "beta": (lambda x: keras.random.beta(keras.ops.shape(x), 2.0, 2.0, seed=1), _X),
    "binomial": (lambda x: keras.random.binomial(keras.ops.shape(x), 4.0, 0.5, seed=1), _X),
    "categorical": (lambda x: keras.random.categorical(x, 2, seed=1), VECTORS),
    "dropout": (lambda x: keras.random.dropout(x, 0.5, seed=1), _X),
    "normal": (lambda x: keras.random.normal(keras.ops.shape(x), seed=1), _X),
    "randint": (lambda x: keras.random.randint(keras.ops.shape(x), 0, 5, seed=1), _X),
    "shuffle": (lambda x: keras.random.shuffle(x, seed=1), _X),
    "truncated_normal": (
        lambda x: keras.random.truncated_normal(keras.ops.shape(x), seed=1),
        _X,
    ),
    "uniform": (lambda x: keras.random.uniform(keras.ops.shape(x), seed=1), _X),
    "uniform, seeded by a generator": (
        lambda x: keras.random.uniform(keras.ops.shape(x), seed=_generator()),
        _X,
    ),
}


@functools.cache
def _generator():
    with tf.init_scope():
        return keras.random.SeedGenerator(1)


# Why a function isn't traced.
NO_CALL = {
    "bartlett": "needs numbers",
    "corrcoef": "needs numbers",
    "kron": "needs numbers",
    "array": "makes a tensor of Python's numbers",
    "convert_to_numpy": "needs numbers",
    "custom_gradient": "is the user's function",
    "dtype": "says how a tensor looks, without operations",
    "isin": "needs a known length in Keras",
    "nanpercentile": "needs a known length in Keras",
    "nanquantile": "needs a known length in Keras",
    "vectorize": "Keras has none for TensorFlow",
}

# What a function that isn't in `_FUNCTIONS` is tried with, as often as it needs arguments.
_TRIED = (SEQUENCES, IDS, SQUARES, COMPLEX, NUMBERS, IMAGES)


def functions():
    """Gives of each function its name and what traces it."""
    for name, (function, *specs) in _FUNCTIONS.items():
        if function is not None:
            yield f"ops.{name}", functools.partial(traced, function, *specs)
    for module in (keras.ops, keras.ops.image):
        for name in sorted(vars(module)):
            function = getattr(module, name)
            is_public = inspect.isfunction(function) and name[0] != "_"
            if is_public and name not in _FUNCTIONS and name not in NO_CALL:
                yield f"ops.{name}", functools.partial(_function, function)


def _function(function):
    parameters = inspect.signature(function).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    if needed and needed[0].name in ("xs", "arrays"):
        return traced(lambda x: function([x, 2 * x]), _X)
    count = len(needed) or 1
    return first_of([functools.partial(traced, function, *[s] * count) for s in _TRIED])
