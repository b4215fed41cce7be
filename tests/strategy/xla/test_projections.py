"""What stands for projective transformations of images, against TensorFlow's own kernel."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.strategy.xla.projections import projected

RNG = np.random.default_rng(0)
FILLS = ("CONSTANT", "REFLECT", "WRAP", "NEAREST")
SIZES = [(5, 7), (1, 6), (4, 1)]
WAYS = list(itertools.product(("NEAREST", "BILINEAR"), FILLS))


def transforms(count):
    """Rotations, shears, shifts far outside and perspectives, of places off those of pixels."""
    made = RNG.normal(size=[count, 8]) * [1.5, 1.5, 12, 1.5, 1.5, 12, 0.02, 0.02]
    return (made + 0.0013).astype("float32")


def compared(own, interpolation, fill, sizes):
    for (height, width), count in itertools.product(sizes, (6, 1)):
        images = RNG.normal(size=[6, height, width, 2]).astype("float32")
        given = images, transforms(count), tf.constant([4, 6]), tf.constant(0.25)
        expected = tf.raw_ops.ImageProjectiveTransformV3(
            images=given[0],
            transforms=given[1],
            output_shape=given[2],
            fill_value=given[3],
            interpolation=interpolation,
            fill_mode=fill,
        )
        found = own(*given, interpolation=interpolation, fill=fill)
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize(("interpolation", "fill"), WAYS)
def test_pixels_are_those_of_the_kernel(interpolation, fill):
    compared(projected, interpolation, fill, SIZES)


@pytest.mark.parametrize(
    ("interpolation", "fill"), tiers.cases(WAYS, kept={("BILINEAR", "REFLECT")})
)
def test_pixels_are_those_of_the_kernel_where_xla_compiles(interpolation, fill):
    own = tf.function(projected, jit_compile=True, autograph=False)
    compared(own, interpolation, fill, SIZES[:1])


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float64"])
@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
def test_pixels_keep_their_dtype(dtype, interpolation):
    images = (RNG.random([2, 5, 5, 1]) * 200).astype(dtype)
    given = images, transforms(2), tf.constant([5, 5]), tf.constant(3.0)
    names = ("images", "transforms", "output_shape", "fill_value")
    expected = tf.raw_ops.ImageProjectiveTransformV3(
        **dict(zip(names, given, strict=True)), interpolation=interpolation, fill_mode="REFLECT"
    )
    found = projected(tf.constant(images), *given[1:], interpolation, "REFLECT")
    assert found.dtype == dtype
    np.testing.assert_allclose(
        tf.cast(found, "float64"),
        tf.cast(expected, "float64"),
        atol=1 if dtype != "float64" else 1e-3,
    )


def test_a_place_at_infinity_is_filled():
    flat = tf.constant([[1.0, 0, 0, 0, 1, 0, -1, 0]])  # the depth is 0 where x is 1
    images = tf.ones([1, 2, 3, 1])
    found = projected(images, flat, tf.constant([2, 3]), tf.constant(9.0), "BILINEAR", "REFLECT")
    expected = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=flat,
        output_shape=[2, 3],
        fill_value=9.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )
    assert expected[0, 0, 1, 0] == 9.0
    np.testing.assert_array_equal(found, expected)


def test_whole_numbers_are_those_of_the_kernel_where_parts_of_pixels_add_up_to_them():
    draws = np.random.default_rng(0)
    transforms = tf.constant(draws.normal(size=[64, 8]) * ([1.0, 1.0, 4.0] * 2 + [0.0] * 2))
    given = tf.fill([64, 3, 4, 1], tf.constant(7, tf.uint8)), tf.cast(transforms, tf.float32)
    expected = tf.raw_ops.ImageProjectiveTransformV3(
        images=given[0],
        transforms=given[1],
        output_shape=[5, 5],
        fill_value=7.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    found = projected(*given, tf.constant([5, 5]), tf.constant(7.0), "BILINEAR", "CONSTANT")
    assert np.count_nonzero(found != expected) <= 16  # of 1600; of another order it is 130
