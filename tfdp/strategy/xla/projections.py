"""Projective transformations of images, by operations that XLA has."""

from typing import Literal

import tensorflow as tf

Interpolation = Literal["NEAREST", "BILINEAR"]
Fill = Literal["CONSTANT", "REFLECT", "WRAP", "NEAREST"]


def projected(
    images: tf.Tensor,
    transforms: tf.Tensor,
    output_shape: tf.Tensor,
    fill_value: tf.Tensor,
    interpolation: Interpolation,
    fill: Fill,
) -> tf.Tensor:
    """Returns what `tf.raw_ops.ImageProjectiveTransformV3` does.

    Args:
      images: [batch, height, width, channels], of any dtype.
      transforms: [batch or 1, 8], float32: for the output at (x, y) the input is read at
        ((a x + b y + c) / k, (d x + e y + f) / k), where k = g x + h y + 1.
      output_shape: The height and width of the result.
      fill_value: What lies outside of an image, a float32.
      interpolation: Whether the nearest pixel is read, or the four around it are.
      fill: How what lies outside is read: as `fill_value`, mirrored, repeated, or as the border.

    >>> shift = tf.constant([[1.0, 0, 1, 0, 1, 0, 0, 0]])
    >>> image = tf.reshape(tf.range(4.0), [1, 1, 4, 1])
    >>> given = image, shift, tf.constant([1, 4]), tf.constant(-1.0)
    >>> projected(*given, "NEAREST", "CONSTANT")[0, 0, :, 0].numpy()
    array([ 1.,  2.,  3., -1.], dtype=float32)
    """
    shape = tf.shape(images)
    a, b, c, d, e, f, g, h = tf.unstack(transforms[:, :, tf.newaxis, tf.newaxis], axis=1)
    x = tf.cast(tf.range(output_shape[1]), tf.float32)[tf.newaxis, tf.newaxis, :]
    y = tf.cast(tf.range(output_shape[0]), tf.float32)[tf.newaxis, :, tf.newaxis]
    depth = g * x + h * y + 1.0
    is_seen = depth != 0.0
    depth = tf.where(is_seen, depth, 1.0)
    column = _inside((a * x + b * y + c) / depth, shape[2], fill)
    row = _inside((d * x + e * y + f) / depth, shape[1], fill)
    places = tf.concat([shape[:1], output_shape], axis=0)
    column, row = tf.broadcast_to(column, places), tf.broadcast_to(row, places)
    outside = tf.cast(fill_value, images.dtype)
    if interpolation == "NEAREST":
        found = _read(images, _rounded(row), _rounded(column), outside)
    else:
        top, left = tf.floor(row), tf.floor(column)
        rows = tf.stack([top, top, top + 1.0, top + 1.0], axis=-1)
        columns = tf.stack([left, left + 1.0, left, left + 1.0], axis=-1)
        around = tf.cast(_read(images, rows, columns, outside), tf.float32)
        # In TensorFlow's order: whole numbers are cut off, and 7 is none that is a bit less.
        across, along = column[..., tf.newaxis, tf.newaxis], row[..., tf.newaxis]
        to_left, up = left[..., tf.newaxis, tf.newaxis], top[..., tf.newaxis]
        lines = (to_left + 1.0 - across) * around[..., ::2, :]
        lines += (across - to_left) * around[..., 1::2, :]
        mixed = (up + 1.0 - along) * lines[..., 0, :] + (along - up) * lines[..., 1, :]
        found = tf.cast(mixed, images.dtype)
    return tf.where(is_seen[..., tf.newaxis], found, outside)


def _read(images: tf.Tensor, row: tf.Tensor, column: tf.Tensor, outside: tf.Tensor) -> tf.Tensor:
    """Returns the pixels at whole places: of [batch, ...] of them [batch, ..., channels]."""
    shape = tf.shape(images)
    last_row, last_column = (tf.cast(shape[axis] - 1, tf.float32) for axis in (1, 2))
    is_inside = (row >= 0.0) & (row <= last_row) & (column >= 0.0) & (column <= last_column)
    row = tf.cast(tf.clip_by_value(row, 0.0, last_row), tf.int32)
    column = tf.cast(tf.clip_by_value(column, 0.0, last_column), tf.int32)
    pixels = tf.reshape(images, [shape[0], shape[1] * shape[2], shape[3]])
    found = tf.gather(pixels, row * shape[2] + column, axis=1, batch_dims=1)
    return tf.where(is_inside[..., tf.newaxis], found, outside)


def _rounded(value: tf.Tensor) -> tf.Tensor:
    """Returns the nearest whole numbers, halves away from 0, as C rounds."""
    size = tf.abs(value)
    low = tf.floor(size)
    return tf.sign(value) * tf.where(size - low >= 0.5, low + 1.0, low)


def _inside(place: tf.Tensor, size: tf.Tensor, fill: Fill) -> tf.Tensor:
    """Returns where along an axis of a size is read what lies at a place, maybe outside of it."""
    if fill == "CONSTANT":
        return place
    length = tf.cast(size, tf.float32)
    last = length - 1.0
    if fill == "REFLECT":
        period = 2.0 * length
        below = place + period * tf.floor(-place / period)
        below = tf.where(below < -length, below + period, -below - 1.0)
        above = place - period * tf.floor(place / period)
        above = tf.where(above >= length, period - above - 1.0, above)
        place = _where_outside(place, last, below, above)
    elif fill == "WRAP":
        steps = tf.maximum(last, 1.0)
        below = place + length * (tf.floor(-place / steps) + 1.0)
        above = place - length * tf.floor(place / steps)
        place = _where_outside(place, last, below, above)
    return tf.clip_by_value(place, 0.0, last)


def _where_outside(
    place: tf.Tensor, last: tf.Tensor, below: tf.Tensor, above: tf.Tensor
) -> tf.Tensor:
    return tf.where(place < 0.0, below, tf.where(place > last, above, place))
