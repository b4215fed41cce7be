"""Fingerprints of global batches, by which ranks see whether they have read the same one.

Each process reads every global batch and takes its own share of it. If one shards its data by rank,
or shuffles them by a seed of its own, examples are lost and others come twice, and nothing fails.
"""

from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

# As many numbers of two rows are looked at, evenly spread over them.
_MOST = 2048

# What a fingerprint has of the 64 bits of a hash.
BITS = 31


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
    found = []
    for part in tf.nest.flatten(leaf, expand_composites=True):
        if part is None:
            continue
        has_rows = part is leaf  # and is no component of a ragged or sparse tensor
        part = tf.convert_to_tensor(part)
        found.append(tf.shape(part, tf.int64))
        if part.dtype not in (tf.resource, tf.variant):
            ends = has_rows and part.shape.rank != 0
            found.append(_hashed(tf.concat([part[:1], part[-1:]], 0) if ends else part))
    hashed = _hashed(tf.concat(found or [[0]], 0))[0]
    return tf.bitwise.right_shift(hashed, tf.constant(64 - BITS, tf.int64)) & (2**BITS - 1)


def _hashed(rows: tf.Tensor) -> tf.Tensor:
    """Returns a number, int64, in a vector of one, for the elements of a tensor."""
    flat = tf.reshape(rows, [1, -1])
    known = rows.shape.num_elements()
    step = tf.maximum(tf.size(rows) // _MOST, 1) if known is None else max(known // _MOST, 1)
    if known is None or known // _MOST > 1:
        flat = flat[:, ::step]
    if flat.dtype == tf.string:  # TensorFlow leaves the hash of no text as memory has it
        flat = tf.concat([flat, [[""]]], 1)
    if flat.dtype.is_floating and flat.dtype.size == 1:  # TensorFlow compares none of these
        flat = tf.cast(flat, tf.float32)
    if flat.dtype.is_floating:
        # There are many NaNs; which of them operations give is not the data's.
        flat = tf.where(flat == flat, flat, tf.constant(float("nan"), flat.dtype))
    with tf.device("CPU:0"):
        found = tf.raw_ops.Fingerprint(data=flat, method="farmhash64")
        return tf.bitcast(found, tf.int64)
