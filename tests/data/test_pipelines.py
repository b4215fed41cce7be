"""The t-th batch is the same for any number of replicas; every example comes once an epoch."""

import functools
import gc
import itertools
import weakref
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tiers
from hypothesis import strategies as st

import tfdp
from tfdp.data.epoch_plan import epoch_order


def as_indexed(ids, **options):
    return tfdp.data.pipeline(ids, **options)


def as_stream(ids, **options):
    return tfdp.data.pipeline(tf.data.Dataset.from_tensor_slices(ids), **options)


def as_stream_of_unknown_length(ids, **options):
    def keep(_):
        return True

    return tfdp.data.pipeline(tf.data.Dataset.from_tensor_slices(ids).filter(keep), **options)


KINDS = [as_indexed, as_stream, as_stream_of_unknown_length]
IDS = np.arange(100, 123)


def of_kinds(*fast):
    """Runs a test with each kind of pipeline, the others than `fast` in `make test-all`."""
    return pytest.mark.parametrize(
        "make",
        tiers.cases(KINDS, fast),
        ids=[kind.__name__ for kind in KINDS],
    )


every_kind = of_kinds(as_indexed, as_stream_of_unknown_length)
# Where a stream's length matters nothing.
indexed_or_stream = of_kinds(as_indexed, as_stream)


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def epoch(pipeline):
    """One epoch's batches, as an iterator gives them."""
    return [batch.numpy().tolist() for batch in pipeline]


def shares(pipeline, replicas, ranks):
    dataset = pipeline.from_start().for_replicas(replicas, ranks)
    return [share.numpy().tolist() for share in dataset]


def tenfold(example):
    return example * 10


@pytest.mark.slow
@indexed_or_stream
@pytest.mark.parametrize(
    ("map_fn", "size", "drop_remainder"),
    [
        (tenfold, 9, False),
        *(
            pytest.param(map_fn, size, drop_remainder, marks=pytest.mark.exhaustive)
            for map_fn, size, drop_remainder in [(None, 8, True), (None, 30, False)]
        ),
    ],
)
def test_batches_are_the_same_for_any_number_of_replicas_and_processes(
    make, map_fn, size, drop_remainder
):
    options = {"global_batch_size": size, "seed": 4, "map_fn": map_fn}
    pipeline = make(IDS, **options, drop_remainder=drop_remainder)
    expected = epoch(pipeline)
    for replicas in (2, 3, 8):
        in_one = shares(pipeline, replicas, range(replicas))
        by_batch = [in_one[i : i + replicas] for i in range(0, len(in_one), replicas)]
        assert [flat(batch) for batch in by_batch] == expected
        for batch in by_batch:
            assert max(map(len, batch)) - min(map(len, batch)) <= 1
        in_many = [shares(pipeline, replicas, range(rank, rank + 1)) for rank in range(replicas)]
        assert [list(batch) for batch in zip(*in_many, strict=True)] == by_batch


@every_kind
@pytest.mark.parametrize("replicas", tiers.first_of(3, 1, 2))
def test_every_example_comes_exactly_once_an_epoch(make, replicas):
    pipeline = make(IDS, global_batch_size=6, seed=0)
    of_ranks = [flat(shares(pipeline, replicas, range(r, r + 1))) for r in range(replicas)]
    assert sorted(flat(of_ranks)) == IDS.tolist()  # so no two ranks share one


@pytest.mark.slow
@every_kind
def test_each_epoch_has_another_order_and_is_whole(make):
    pipeline = make(IDS, global_batch_size=8, seed=2)
    epochs = [epoch(pipeline) for _ in range(3)]
    for batches in epochs:
        assert sorted(flat(batches)) == IDS.tolist()
        assert [len(batch) for batch in batches] == [8, 8, 7]
    assert epochs[0] != epochs[1] != epochs[2]
    assert pipeline.state()["epoch"] == 3
    again = make(IDS, global_batch_size=8, seed=2)
    assert [epoch(again) for _ in range(3)] == epochs


def test_the_order_is_that_of_seed_and_epoch():
    pipeline = as_indexed(IDS, global_batch_size=8, seed=2)
    for number in range(3):
        order = IDS[epoch_order(len(IDS), 2, number, shuffle=True)]
        assert flat(epoch(pipeline)) == order.tolist()


@pytest.mark.slow
@every_kind
def test_a_global_seed_does_not_change_the_order(make):
    def drawn():
        return epoch(make(IDS, global_batch_size=8, seed=2))

    expected = drawn()
    tf.random.set_seed(99)
    np.random.seed(99)
    assert drawn() == expected


@every_kind
def test_without_shuffling_the_order_is_the_source_s(make):
    pipeline = make(IDS, global_batch_size=8, seed=2, shuffle=False)
    assert [flat(epoch(pipeline)) for _ in range(2)] == [IDS.tolist()] * 2


@indexed_or_stream
@pytest.mark.parametrize(
    ("drop_remainder", "taken"),
    [
        (False, 2),
        *(
            pytest.param(drop, taken, marks=pytest.mark.exhaustive)
            for drop, taken in [(False, 1), (False, 3), (True, 1), (True, 2), (True, 3)]
        ),
    ],
)
def test_an_iterator_goes_on_where_the_last_one_was_left(make, drop_remainder, taken):
    options = {"global_batch_size": 5, "seed": 1, "drop_remainder": drop_remainder}
    expected = [epoch(make(IDS, **options))]
    pipeline = make(IDS, **options)
    iterator = iter(pipeline)
    first = [next(iterator).numpy().tolist() for _ in range(taken)]
    assert first + epoch(pipeline) == expected[0]
    assert pipeline.state()["epoch"] == 1


@pytest.mark.slow
@every_kind
def test_an_endless_view_goes_over_the_ends_of_epochs(make):
    options = {"global_batch_size": 9, "seed": 1}
    whole = make(IDS, **options)
    expected = epoch(whole) + epoch(whole) + epoch(whole)
    pipeline = make(IDS, **options)
    iterator = iter(pipeline.endless())
    assert [next(iterator).numpy().tolist() for _ in range(8)] == expected[:8]
    assert (pipeline.state()["epoch"], pipeline.state()["position"]) == (2, 18)


@pytest.mark.slow
@every_kind
def test_a_view_from_the_start_counts_nothing(make):
    pipeline = make(IDS, global_batch_size=8, seed=2)
    first = epoch(pipeline)
    before = pipeline.state()
    assert epoch(pipeline.from_start()) == first
    assert epoch(pipeline.from_start()) == first
    assert pipeline.state() == before


@pytest.mark.slow
@every_kind
def test_prefetched_batches_are_not_counted(make):
    pipeline = make(IDS, global_batch_size=2, seed=2, prefetch=8)
    iterator = iter(pipeline)
    next(iterator)
    tf.py_function(lambda: None, [], [])  # anything that lets other threads go on
    assert pipeline.state()["position"] == 2
    assert pipeline.progress.batches == 1


@pytest.mark.slow
@every_kind
def test_the_number_of_batches_is_that_of_a_whole_epoch(make):
    pipeline = make(IDS, global_batch_size=8, seed=2)
    unknown = make is as_stream_of_unknown_length
    assert pipeline.cardinality() == (tf.data.UNKNOWN_CARDINALITY if unknown else 3)
    epoch(pipeline)
    assert len(pipeline) == 3
    assert pipeline.endless().cardinality() == tf.data.INFINITE_CARDINALITY


def noisy(image, label, seed):
    return image + tf.random.stateless_uniform(tf.shape(image), seed), label, seed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_augmented_pixels_are_bit_equal_for_any_number_of_replicas(stream, replicas):
    arrays = (np.zeros([11, 4, 4], "float32"), np.arange(11))
    source = tf.data.Dataset.from_tensor_slices(arrays) if stream else arrays
    pipeline = tfdp.data.pipeline(source, 4, seed=3, map_fn=noisy)
    images, labels, seeds = (np.concatenate(part) for part in zip(*pipeline, strict=True))
    dataset = pipeline.from_start().for_replicas(replicas, range(replicas))
    others = [np.concatenate(part) for part in zip(*dataset, strict=True)]
    for one, other in zip((images, labels, seeds), others, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(np.unique(seeds, axis=0)) == 11
    assert (seeds[:, 1] == labels).all()  # an example's own, wherever it comes in the epoch
    (second,) = np.unique([seed[0] for _, _, batch in pipeline for seed in batch.numpy()])
    assert second != seeds[0, 0]  # and another in each epoch


@pytest.mark.slow
def test_a_map_function_gets_the_parts_of_a_tuple_and_a_dictionary_whole():
    arrays = {"a": np.arange(4), "b": np.arange(4.0)}
    pipeline = tfdp.data.pipeline(
        arrays, 4, seed=0, shuffle=False, map_fn=lambda example: example["a"] + 1
    )
    assert epoch(pipeline) == [[1, 2, 3, 4]]

    def add(a, b, seed):
        del seed
        return a + b

    pair = (np.arange(4), np.arange(4) * 10)
    assert epoch(tfdp.data.pipeline(pair, 4, seed=0, shuffle=False, map_fn=add)) == [
        [0, 11, 22, 33]
    ]


@pytest.mark.slow
@every_kind
def test_a_map_function_may_return_a_list_as_for_tf_data(make):
    def pair(example):
        return [example, tf.zeros([2])]

    (batch,) = make(IDS, global_batch_size=23, seed=0, shuffle=False, map_fn=pair)
    assert batch[0].numpy().tolist() == IDS.tolist()
    assert batch[1].shape == (23, 2)


@pytest.mark.slow
def test_only_a_parameter_that_nothing_fills_is_given_the_seed():
    def with_default(example, seed=5):
        return example + seed

    def required(example, *, seed):
        return example + 0 * tf.cast(seed[0], example.dtype) + 1

    for map_fn, expected in [
        (with_default, 105),
        (functools.partial(required, seed=np.array([7, 7])), 101),
        (required, 101),
    ]:
        batches = as_indexed(IDS, global_batch_size=1, seed=0, shuffle=False, map_fn=map_fn)
        assert next(iter(batches)).numpy().tolist() == [expected]
    columns = (IDS, IDS * 2)
    batches = tfdp.data.pipeline(columns, 1, seed=0, shuffle=False, map_fn=lambda v, seed: seed)
    assert next(iter(batches)).numpy().tolist() == [200]


class Pair(NamedTuple):
    """Two columns."""

    a: np.ndarray
    b: np.ndarray


def test_a_named_tuple_stays_whole():
    source = Pair(IDS, IDS * 2)
    batches = tfdp.data.pipeline(source, 1, seed=0, shuffle=False, map_fn=lambda pair: pair.b)
    assert next(iter(batches)).numpy().tolist() == [200]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "map_fn",
    [
        lambda example: (example, None),
        lambda example: tf.sparse.from_dense([example]),
        lambda example: tf.ragged.constant([[1], [2, 3]]),
    ],
)
def test_what_cannot_be_cut_is_refused_where_the_pipeline_is_made(stream, map_fn):
    with pytest.raises(ValueError, match=r"must be tensors, but received \w+ from `map_fn`"):
        (as_stream if stream else as_indexed)(IDS, global_batch_size=4, seed=0, map_fn=map_fn)


def test_a_map_function_may_branch_on_tensors():
    def branch(example):
        if example > 105:
            return example * 0
        return example

    pipeline = as_indexed(IDS, global_batch_size=23, seed=0, shuffle=False, map_fn=branch)
    assert epoch(pipeline) == [[*range(100, 106), *[0] * 17]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_map_function_that_changes_shapes_is_an_error_that_names_the_example(stream):
    make = as_stream if stream else as_indexed
    pipeline = make(
        np.array([3, 3, 4, 3]), global_batch_size=2, seed=0, shuffle=False, map_fn=tf.range
    )
    iterator = iter(pipeline)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        next(iterator)
        next(iterator)
    message = str(error.value)
    assert "must have one shape after `map_fn`" in message
    assert "[3], as the first example" in message
    assert "[2] [of shape:] [4]" in message


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_the_map_function_is_raised_where_the_pipeline_is_made(stream):
    def broken(example):
        raise KeyError("no such feature")

    with pytest.raises(KeyError, match="no such feature"):
        (as_stream if stream else as_indexed)(IDS, global_batch_size=4, seed=0, map_fn=broken)


def test_a_batch_larger_than_the_data_is_one_short_batch():
    assert epoch(as_indexed(IDS, global_batch_size=64, seed=0, shuffle=False)) == [IDS.tolist()]


@pytest.mark.parametrize("make", [as_indexed, as_stream])
def test_a_batch_larger_than_the_data_cannot_be_filled(make):
    with pytest.raises(ValueError, match="must fill a batch of 64; received 23 examples"):
        make(IDS, global_batch_size=64, seed=0, drop_remainder=True)


@pytest.mark.slow
def test_a_stream_that_turns_out_empty_is_an_error():
    empty = tf.data.Dataset.range(3).filter(lambda number: number > 5)
    pipeline = tfdp.data.pipeline(empty, 2, seed=0)
    with pytest.raises(tf.errors.OpError, match="must hold at least one example"):
        next(iter(pipeline))


def test_a_stream_of_known_length_zero_is_an_error():
    with pytest.raises(ValueError, match="must hold at least one example"):
        tfdp.data.pipeline(tf.data.Dataset.range(0), 2, seed=0)


@pytest.mark.slow
@every_kind
def test_what_is_cached_is_the_same(make):
    expected = make(IDS, global_batch_size=8, seed=1, map_fn=tenfold)
    cached = make(IDS, global_batch_size=8, seed=1, map_fn=tenfold, cache=True)
    for _ in range(2):
        assert epoch(cached) == epoch(expected)


def test_a_cached_stream_is_read_once():
    reads = []

    def read():
        for number in range(6):
            reads.append(number)
            yield number

    dataset = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], tf.int64))
    pipeline = tfdp.data.pipeline(dataset, 4, seed=1, cache=True)
    assert sorted(flat(epoch(pipeline))) == sorted(flat(epoch(pipeline)))
    assert reads == list(range(6))


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    length=st.integers(1, 40),
    size=st.integers(1, 12),
    place=st.integers(0, 39),
    replicas=st.integers(1, 4),
    drop_remainder=st.booleans(),
)
def test_any_place_goes_on_with_the_rest_of_the_epoch(
    length, size, place, replicas, drop_remainder
):
    hypothesis.assume(replicas <= size <= length and place < length)
    ids = np.arange(length)
    options = {"global_batch_size": size, "seed": 6, "drop_remainder": drop_remainder}
    pipeline = as_indexed(ids, **options)
    pipeline.restore({**pipeline.state(), "epoch": 2, "position": place})
    at = pipeline.state()
    order = epoch_order(length, 6, at["epoch"], True)[at["position"] :]
    kept = len(order) // size * size if drop_remainder else length
    dataset = pipeline.for_replicas(replicas, range(replicas))
    assert np.concatenate(list(dataset)).tolist() == order[:kept].tolist()


@pytest.mark.parametrize(
    "make_strategy",
    [
        lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    ],
)
def test_strategies_of_one_device_take_it(make_strategy):
    pipeline = as_indexed(np.arange(16), global_batch_size=8, seed=1)
    expected = epoch(pipeline.from_start())
    dataset = make_strategy().experimental_distribute_dataset(pipeline)
    assert [batch.numpy().tolist() for batch in dataset] == expected


def test_it_overrides_of_a_dataset_only_what_it_means_to():
    overridden = {name for name in vars(tfdp.data.Pipeline) if hasattr(tf.data.Dataset, name)}
    public = {name for name in overridden if not name.startswith("_")}
    assert public == {"cardinality", "element_spec", "map"}
    pipeline = as_indexed(IDS, global_batch_size=4, seed=0)
    own = {name for name in vars(pipeline) if not name.startswith("_")}
    assert not own & set(dir(tf.data.Dataset))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "drop_remainder"), [(20, True), (23, False), (24, False)])
def test_a_stream_that_was_left_at_its_end_goes_on_with_the_next_epoch(place, drop_remainder):
    options = {"global_batch_size": 4, "seed": 1, "drop_remainder": drop_remainder}
    whole = as_stream_of_unknown_length(IDS, **options)
    expected = [epoch(whole), epoch(whole)][1]
    pipeline = as_stream_of_unknown_length(IDS, **options)
    pipeline.restore({**pipeline.state(), "position": place})
    assert epoch(pipeline) == expected
    assert pipeline.state()["epoch"] == 2


def test_under_a_stock_strategy_it_is_a_plain_dataset():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    pipeline = as_indexed(np.arange(16), global_batch_size=8, seed=1)
    first = flat(epoch(pipeline.from_start()))
    seen = []
    for batch in strategy.experimental_distribute_dataset(pipeline):
        seen += flat(part.numpy().tolist() for part in strategy.experimental_local_results(batch))
    assert seen == first


def test_its_derivations_are_plain_datasets_that_go_on():
    pipeline = as_indexed(np.arange(16), global_batch_size=4, seed=1)
    whole = epoch(pipeline.from_start())
    assert [b.numpy().tolist() for b in pipeline.map(tenfold).take(4)] == [
        [10 * value for value in batch] for batch in whole
    ]
    assert pipeline.state()["epoch"] == 1


def test_a_traced_function_counts_for_the_pipeline_it_is_given():
    first, second = (as_indexed(IDS, global_batch_size=4, seed=seed) for seed in (1, 2))

    @tf.function
    def two(iterator):
        return next(iterator), next(iterator)

    two(iter(first))
    seen = two(iter(second))
    assert two.experimental_get_tracing_count() == 1
    assert [batch.numpy().tolist() for batch in seen] == epoch(second.from_start())[:2]
    assert (first.state()["position"], second.state()["position"]) == (8, 8)
    assert second.progress.waited_seconds > 0


def test_a_loop_in_a_graph_counts_each_batch():
    pipeline = as_indexed(IDS, global_batch_size=4, seed=1)

    @tf.function
    def total(iterator):
        found = tf.constant(0, tf.int64)
        for batch in iterator:
            found += tf.reduce_sum(batch)
        return found

    assert total(iter(pipeline)) == IDS.sum()
    assert pipeline.progress.batches == 6
    assert pipeline.state()["epoch"] == 1


class Offset:
    """Adds a number, and can be looked for."""

    def add(self, example):
        return example + 7


@pytest.mark.slow
@every_kind
def test_what_is_no_longer_used_is_freed(make):
    offset = Offset()
    pipeline = make(IDS, global_batch_size=8, seed=1, map_fn=offset.add)
    epoch(pipeline)
    epoch(pipeline.from_start())
    left = weakref.ref(offset), weakref.ref(pipeline.source)
    del pipeline, offset
    gc.collect()
    assert [reference() for reference in left] == [None, None]


@pytest.mark.slow
def test_a_stream_that_goes_on_says_what_that_took(caplog):
    caplog.set_level("INFO", "tfdp")
    pipeline = as_stream(IDS, global_batch_size=5, seed=1)
    iterator = iter(pipeline)
    for _ in range(3):
        next(iterator)
    assert "Went on" not in caplog.text
    other = as_stream(IDS, global_batch_size=5, seed=1)
    other.restore(pipeline.state())
    epoch(other)
    epoch(other)
    assert caplog.text.count("Went on after the first 15 examples of ") == 1
    indexed = as_indexed(IDS, global_batch_size=5, seed=1)
    next(iter(indexed))
    epoch(indexed)
    assert caplog.text.count("Went on") == 1
