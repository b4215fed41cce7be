"""Which tensors travel together."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.base import bucketing

ITEMS = st.lists(
    st.builds(
        bucketing.Item,
        kind=st.sampled_from(["float32", "float16", "int64"]),
        size_bytes=st.one_of(st.none(), st.integers(0, 200)),
    ),
    max_size=40,
)
BUCKET_BYTES = st.integers(1, 300)


@given(ITEMS, BUCKET_BYTES)
def test_every_tensor_is_in_exactly_one_bucket(items, bucket_bytes):
    buckets = bucketing.assign(items, bucket_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(items)))
    assert all(buckets)


@given(ITEMS, BUCKET_BYTES)
def test_a_bucket_holds_one_kind_in_order_and_stays_within_its_limit(items, bucket_bytes):
    for bucket in bucketing.assign(items, bucket_bytes):
        assert bucket == sorted(bucket)
        assert len({items[index].kind for index in bucket}) == 1
        if len(bucket) > 1:
            sizes = [items[index].size_bytes for index in bucket]
            assert None not in sizes
            assert sum(sizes) <= bucket_bytes
            assert all(2 * size < bucket_bytes for size in sizes)


@given(ITEMS, BUCKET_BYTES)
def test_no_two_neighbouring_buckets_of_small_tensors_could_have_been_one(items, bucket_bytes):
    small = {}
    for bucket in bucketing.assign(items, bucket_bytes):
        first = items[bucket[0]]
        if first.size_bytes is not None and 2 * first.size_bytes < bucket_bytes:
            small.setdefault(first.kind, []).append(bucket)
    for buckets in small.values():
        buckets.sort()
        for bucket, following in itertools.pairwise(buckets):
            filled = sum(items[index].size_bytes for index in bucket)
            assert filled + items[following[0]].size_bytes > bucket_bytes


@given(ITEMS, BUCKET_BYTES)
def test_the_assignment_depends_on_nothing_but_its_arguments(items, bucket_bytes):
    assert bucketing.assign(items, bucket_bytes) == bucketing.assign(list(items), bucket_bytes)


@pytest.mark.parametrize("bucket_bytes", [0, -1])
def test_a_limit_below_one_byte_is_refused(bucket_bytes):
    with pytest.raises(ValueError, match=f"must be at least 1, but received {bucket_bytes}"):
        bucketing.assign([], bucket_bytes)


def test_small_tensors_fill_buckets_in_order_and_large_ones_travel_alone():
    sizes = [10, 60, 20, None, 45, 40, 0]
    items = [bucketing.Item("f4", size) for size in sizes]
    assert bucketing.assign(items, 100) == [[1], [3], [0, 2, 4], [5, 6]]


def test_the_first_bucket_of_a_kind_is_smaller(monkeypatch):
    monkeypatch.setattr(bucketing, "FIRST_BYTES", 30)
    kinds = ["f4", "f4", "f4", "f2", "f4", "f4", "f4"]
    items = [bucketing.Item(kind, 15) for kind in kinds]
    assert bucketing.assign(items, 100) == [[0, 1], [2, 4, 5, 6], [3]]


def test_what_travels_alone_is_for_the_caller_to_say():
    items = [bucketing.Item("f4", 3 * 2**20) for _ in range(3)]
    assert bucketing.assign(items, 2**24) == [[0], [1], [2]]
    assert bucketing.assign(items, 2**24, alone_bytes=2**24) == [[0], [1, 2]]
