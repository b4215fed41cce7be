"""What each compression computes, in NumPy in float64: the sum, and each replica's own term.

A function of the compression, for each replica one gradient, the number of the variable and that of
the update, and of what was kept before. Where a compression draws, the numbers drawn are its own:
which numbers they are is no part of an algorithm.
"""

import math

import numpy as np
import tensorflow as tf

from tfdp.compression import Bucket


def top_k(compression, gradients, number=0, step=0, before=None):
    own = []
    for gradient in gradients:
        flat = np.asarray(gradient, "float64").ravel()
        count = math.ceil(compression.ratio * flat.size)
        chosen = np.argsort(-np.abs(flat), kind="stable")[:count]
        sent = np.zeros_like(flat)
        sent[chosen] = flat[chosen]
        own.append(sent.reshape(gradient.shape))
    return sum(own), own, {}


def random_k(compression, gradients, number=0, step=0, before=None, feedback=False):
    size = gradients[0].size
    bucket = Bucket([tf.constant(gradients[0])], [{}], (number,), tf.constant(step))
    places = compression.places(bucket, 0)[0].numpy()
    count = math.ceil(compression.ratio * size)
    bounds = np.arange(count + 1) * size // count
    assert np.all(bounds[:-1] <= places) and np.all(places < bounds[1:])
    own = []
    for gradient in gradients:
        sent = np.zeros(size)
        flat = np.asarray(gradient, "float64").ravel()
        sent[places] = flat[places] * (1 if feedback else np.diff(bounds))
        own.append(sent.reshape(gradient.shape))
    return sum(own), own, {}


def power_sgd(compression, gradients, number=0, step=0, before=None):
    columns, _ = before["factor"].shape
    matrices = [np.asarray(g, "float64").reshape(-1, columns) for g in gradients]
    left, _ = np.linalg.qr(sum(m @ before["factor"].astype("float64") for m in matrices))
    right = [m.T @ left for m in matrices]
    own = [(left @ q.T).reshape(g.shape) for q, g in zip(right, gradients, strict=True)]
    return sum(own), own, {"factor": sum(right)}


def sign(compression, gradients, number=0, step=0, before=None):
    return _in_chunks(gradients, compression.block, _signs)


def sign_parts(compression, gradients, cut, number=0, step=0):
    return _in_parts(gradients, cut, compression.block, _signs)


def _signs(blocks, is_real, rank, second):
    count = np.maximum(is_real.sum(-1, keepdims=True), 1)
    scale = np.abs(blocks * is_real).sum(-1, keepdims=True) / count
    return np.where(blocks >= 0, scale, -scale)


def int8(compression, gradients, number=0, step=0, before=None):
    rounded = _rounding(compression, len(gradients), number, step)
    return _in_chunks(gradients, compression.block, rounded)


def int8_parts(compression, gradients, cut, number=0, step=0):
    """The whole sum of which each replica has its part, and each replica's own term."""
    rounded = _rounding(compression, len(gradients), number, step)
    return _in_parts(gradients, cut, compression.block, rounded)


def _rounding(compression, count, number, step):
    def rounded(blocks, is_real, rank, second):
        bucket = Bucket.of([0.0], step=step)
        seed = bucket.seed(compression.seed, number, rank + count * second)
        words = tf.random.stateless_uniform([blocks.size // 2], seed, None, None, tf.int32)
        draws = words.numpy().view(np.uint16).reshape(blocks.shape) / 2**16
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        levels = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
        return np.floor(levels + draws) * scale

    return rounded


def _in_parts(gradients, cut, block, quantized):
    """Each replica's part in blocks of its own, filled up to those of the largest part."""
    ranks = range(len(gradients))
    sizes = [cut.size(rank) for rank in ranks]
    longest = max(-(-size // block) for size in sizes)
    padded = np.arange(longest * block)
    is_real = np.stack([(padded < size).reshape(longest, block) for size in sizes])
    own = []
    for rank, gradient in enumerate(np.asarray(gradients, "float64")):
        parts = np.zeros([len(sizes), longest * block])
        for other, size in enumerate(sizes):
            parts[other, :size] = gradient[cut.index(other)].ravel()
        sent = quantized(parts.reshape(is_real.shape), is_real, rank, False)
        sent = sent.reshape(parts.shape)
        own.append(np.zeros(gradient.shape))
        for other, size in enumerate(sizes):
            own[-1][cut.index(other)] = sent[other, :size].reshape(cut.part_shape(other))
    return sum(own), own


def _in_chunks(gradients, block, quantized):
    count, size = len(gradients), gradients[0].size
    fill = -size % (block * count)
    padded = [np.append(np.asarray(g, "float64").ravel(), np.zeros(fill)) for g in gradients]
    chunks = [flat.reshape(count, -1, block) for flat in padded]
    is_real = (np.arange(size + fill) < size).reshape(count, -1, block)
    own = [quantized(chunk, is_real, rank, False) for rank, chunk in enumerate(chunks)]
    totals = sum(own)
    sums = np.stack(
        [quantized(total, is_real[rank], rank, True) for rank, total in enumerate(totals)]
    )
    for rank in range(count):
        own[rank][rank] += sums[rank] - totals[rank]
    shape = gradients[0].shape
    return (
        sums.ravel()[:size].reshape(shape),
        [each.ravel()[:size].reshape(shape) for each in own],
        {},
    )
