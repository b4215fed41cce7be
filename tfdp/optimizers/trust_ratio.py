"""The layer-wise trust ratio, in pure functions of tensors.

LARS and LAMB multiply each variable's update by ‖w‖ / ‖update‖, so that a step moves every layer by
the same fraction of its norm whatever the size of its gradients. As in every implementation known
to us, a "layer" is a variable: a kernel and a bias have a ratio each.
"""

import tensorflow as tf

Bounds = tuple[float, float] | None


def square_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of squares.

    Half precision is summed in float32: squares of float16 overflow at 256. Of complex numbers it
    is the sum of squared moduli.

    Args:
      tensor: A tensor of any shape; float16, bfloat16, float32 or float64, or complex.

    Returns:
      A scalar: float64 for float64 and complex128, else float32.

    >>> float(square_norm(tf.fill([2, 2], tf.constant(300.0, tf.float16))))
    360000.0
    """
    if tensor.dtype.is_complex:
        tensor = tf.bitcast(tensor, tensor.dtype.real_dtype)
    if tensor.dtype != tf.float64:
        tensor = tf.cast(tensor, tf.float32)
    # One kernel reads the tensor once; `tf.square` would write its squares and read them again.
    return 2 * tf.nn.l2_loss(tensor)


def norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm, in the dtype of `square_norm`.

    >>> float(norm(tf.fill([2, 2], tf.constant(300.0, tf.float16))))
    600.0
    """
    return tf.sqrt(square_norm(tensor))


def clipped(value: tf.Tensor, bounds: Bounds) -> tf.Tensor:
    """Returns φ(z) = min(max(z, low), high); `value` itself without bounds.

    Source: You et al., arXiv:1904.00962, section 3.2, where φ is applied to a weight's norm.

    >>> float(clipped(tf.constant(12.0), (0.0, 10.0)))
    10.0
    """
    if bounds is None:
        return value
    # The bounds have the value's dtype from the start: `tf.cast` of a float would round it to
    # float32.
    return tf.clip_by_value(value, *(tf.constant(bound, value.dtype) for bound in bounds))


def trust_ratio(
    weight_norm: tf.Tensor,
    update_norm: tf.Tensor,
    coefficient: float = 1.0,
    *,
    weight_norm_bounds: Bounds = None,
    ratio_bounds: Bounds = None,
) -> tf.Tensor:
    """Returns `coefficient` · φ(‖w‖) / ‖update‖, the factor of a layer's update.

    The ratio is 1 where φ(‖w‖) or the update's norm is zero, as in the papers' authors' code: a
    layer that starts at zero must be able to leave it, and an update of zero has any factor.
    `ratio_bounds` hold in any case.

    Args:
      weight_norm: The norm ‖w‖, a scalar.
      update_norm: The norm ‖update‖, or what stands for it, a scalar.
      coefficient: The coefficient η of LARS.
      weight_norm_bounds: The bounds of φ; see `clipped`.
      ratio_bounds: The bounds of the ratio itself.

    Returns:
      A scalar of the norms' dtype.

    >>> float(trust_ratio(tf.constant(3.0), tf.constant(6.0), coefficient=0.1))
    0.05...
    >>> float(trust_ratio(tf.constant(0.0), tf.constant(6.0), coefficient=0.1))
    1.0
    """
    bounded_norm = clipped(weight_norm, weight_norm_bounds)
    ratio = coefficient * bounded_norm / update_norm
    defined = tf.logical_and(bounded_norm > 0, update_norm > 0)
    return clipped(tf.where(defined, ratio, tf.ones_like(ratio)), ratio_bounds)
