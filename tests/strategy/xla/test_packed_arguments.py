"""Small arrays of a program that are joined."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tfdp.strategy.xla import packed_arguments  # noqa: E402 - needs JAX's package

LIKES = [
    np.zeros(shape, dtype)
    for shape, dtype in (
        *[([2, 3], "float32"), ([], "int64"), ([0], "float32"), ([5], "int64")] * 20,
        ([packed_arguments.LARGEST_BYTES // 4 + 1], "float32"),
        ([packed_arguments.LARGEST_BYTES // 8], "float64"),
        ([packed_arguments.LARGEST_BYTES // 8], "float64"),
        ([3], "bool"),
        ([1], "complex64"),
    )
]


def test_all_arrays_come_back_in_the_order_with_their_values_shapes_and_dtypes():
    found = packed_arguments.Packing(LIKES)
    rng = np.random.default_rng(0)
    values = [rng.integers(2, size=LIKES[index].shape) for index in found.order]
    values = [
        value.astype(LIKES[index].dtype) for value, index in zip(values, found.order, strict=True)
    ]
    assert sorted(found.order) == list(range(len(LIKES)))
    for numpy in (np, jax.numpy):
        with jax.enable_x64(True):
            packed = found.packed(values, numpy)
            back = found.unpacked(packed, numpy)
        assert len(packed) == len(found.groups) + len(found.alone)
        for value, other in zip(values, back, strict=True):
            assert value.dtype == other.dtype
            np.testing.assert_array_equal(value, other, strict=False)


def test_joined_are_small_ones_of_one_dtype_and_not_too_many():
    found = packed_arguments.Packing(LIKES)
    for group in found.groups:
        likes = [LIKES[found.order[place]] for place in group]
        assert len({like.dtype for like in likes}) == 1
        assert 1 < len(likes) <= packed_arguments.AT_MOST
        assert max(like.nbytes for like in likes) <= packed_arguments.LARGEST_BYTES
    alone = [LIKES[found.order[place]] for place in found.alone]
    # 40 of each dtype, in groups of at most 16, make three; two of float64 make one.
    assert [len(group) for group in found.groups] == [16, 16, 8, 16, 16, 8, 2]
    assert [(like.dtype.name, like.size) for like in alone] == [
        ("float32", packed_arguments.LARGEST_BYTES // 4 + 1),
        ("bool", 3),
        ("complex64", 1),
    ]


def test_none_are_joined_where_it_is_one_at_most():
    found = packed_arguments.Packing(LIKES, at_most=1)
    assert not found.groups and found.order == list(range(len(LIKES)))
    assert found.packed(LIKES, np) == LIKES == found.unpacked(LIKES, np)
