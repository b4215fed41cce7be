"""Fingerprints of global batches, by which ranks see whether they have read the same one.

Each process reads every global batch and takes its own share of it. If one shards its data by rank,
or shuffles them by a seed of its own, examples are lost and others come twice, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tfdp.replicas.checksums import bits_of

# As many numbers of an example are looked at, evenly spread over it.
_MOST = 1024

# What a fingerprint has of the 64 bits that are computed with.
BITS = 31

# Powers of a generator modulo 2**64 weigh the places; a multiplication wraps there.
_WEIGHT = 6364136223846793005


def of_leaves(batch: object) -> tf.Tensor:
    """Returns a number for each leaf of a batch, int64: of its sizes, first and last row.

    Of a ragged or sparse tensor it is of all rows.

    >>> one, other = of_leaves((tf.range(4), tf.range(3.0))).numpy()
    >>> again, another = of_leaves((tf.range(4), tf.range(1.0, 4.0))).numpy()
    >>> bool(one == again), bool(other == another)
    (True, False)
    """
    return tf.stack([_of_leaf(leaf) for leaf in tf.nest.flatten(batch)])


def names(batch: object) -> list[str]:
    """Returns what the leaves of a batch are called, in the order of `of_leaves`.

    >>> names(({"b": 0, "a": 0}, 1))
    ['x/a', 'x/b', 'y']
    """
    parts = batch if isinstance(batch, tuple) and len(batch) <= 3 else (batch,)
    called = ("x", "y", "sample_weight")
    return [name for part, own in zip(parts, called, strict=False) for name in _names(part, own)]


def names_of_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """Returns what the leaves of a call's arguments are called, in the order of their nest.

    >>> names_of_arguments((1, {"b": 2, "a": 3}), {"y": 4})
    ['argument 0', 'argument 1/a', 'argument 1/b', 'argument `y`']
    """
    called = [(f"argument {index}", each) for index, each in enumerate(args)]
    called += [(f"argument `{key}`", kwargs[key]) for key in sorted(kwargs)]
    return [name for own, each in called for name in _names(each, own)]


def _names(structure: object, called: str) -> Iterator[str]:
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _names(structure[key], f"{called}/{key}")
    elif isinstance(structure, (list, tuple)):
        for index, each in enumerate(structure):
            yield from _names(each, f"{called}/{index}")
    else:
        yield called


def _of_leaf(leaf: object) -> tf.Tensor:
    found = [tf.constant(0, tf.int64)]
    for part in tf.nest.flatten(leaf, expand_composites=True):
        if part is None:
            continue
        composite = part is not leaf  # a part of which has no rows of examples
        part = tf.convert_to_tensor(part)
        rows = [part] if composite or part.shape.rank == 0 else [part[:1], part[-1:]]
        found.append(tf.reduce_sum(_mixed(tf.shape(part, tf.int64))))
        found += [tf.reduce_sum(_mixed(_numbers(each))) for each in rows]
    mixed = tf.reduce_sum(_mixed(tf.stack(found)))
    # What is multiplied has its best bits above.
    return tf.bitwise.right_shift(mixed, tf.constant(64 - BITS, tf.int64)) & (2**BITS - 1)


def _mixed(numbers: tf.Tensor) -> tf.Tensor:
    """Returns numbers, each weighed by its place; as one they stand for all of them."""
    places = tf.range(tf.size(numbers, tf.int64), dtype=tf.int64)
    return (numbers + 1) * (2 * places + 1) * _WEIGHT + places


def _numbers(rows: tf.Tensor) -> tf.Tensor:
    """Returns the bits of elements of a tensor, as a vector of int64."""
    flat = tf.reshape(rows, [-1])
    flat = flat[:: tf.maximum(tf.size(flat) // _MOST, 1)]
    if flat.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(flat, 2**62)
    dtype = flat.dtype
    if dtype.is_floating:
        # There are many NaNs; which of them operations give is not the data's.
        flat = tf.where(flat == flat, flat, tf.constant(float("nan"), dtype))
    if dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool:
        return bits_of(flat)
    return tf.zeros([0], tf.int64)
