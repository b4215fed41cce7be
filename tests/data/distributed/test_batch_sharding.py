"""Global batches and the replicas' shares of them."""

import itertools

import harness
import numpy as np
import pytest
import tensorflow as tf
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.base.sharding import share_sizes
from tfdp.data.distributed import batch_sharding

# ---- split


@given(
    size=st.integers(0, 9),
    columns=st.integers(0, 3),
    replicas=st.integers(1, 4),
)
@settings(max_examples=30)
def test_split_gives_the_replicas_the_rows_in_order(size, columns, replicas):
    rows = np.arange(size * columns, dtype=np.float32).reshape(size, columns)
    strategy = harness.strategy(replicas)
    shares = strategy.experimental_local_results(strategy.split(rows))
    assert [len(share) for share in shares] == share_sizes(size, replicas)
    np.testing.assert_array_equal(np.concatenate(shares), rows)


def test_split_keeps_nests_and_what_is_none():
    batch = {"x": [np.arange(5), None], "y": (tf.constant([["a"]] * 5),), "none": None}
    split = harness.strategy(2).split(batch)
    assert split["none"] is None
    assert split["x"][1] is None
    assert [v.numpy().tolist() for v in split["x"][0].values] == [[0, 1, 2], [3, 4]]
    assert [v.shape.as_list() for v in split["y"][0].values] == [[3, 1], [2, 1]]


def test_split_cuts_ragged_and_sparse_tensors_by_rows():
    strategy = harness.strategy(3)
    ragged = tf.ragged.constant([[1], [], [2, 3, 4], [5, 6]])
    parts = strategy.split(ragged).values
    assert [part.to_list() for part in parts] == [[[1], []], [[2, 3, 4]], [[5, 6]]]
    dense = np.arange(12).reshape(4, 3) * (np.arange(12).reshape(4, 3) % 2)
    parts = strategy.split(tf.sparse.from_dense(dense)).values
    np.testing.assert_array_equal(np.concatenate([tf.sparse.to_dense(p) for p in parts]), dense)
    assert [part.dense_shape.numpy().tolist() for part in parts] == [[2, 3], [1, 3], [1, 3]]


def test_what_split_returns_goes_into_run():
    strategy = harness.strategy(3)
    split = strategy.split({"x": np.arange(7.0), "none": None})

    @tf.function
    def step(batch):
        return strategy.run(lambda b: tf.reduce_sum(b["x"]), args=(batch,))

    parts = [v.numpy() for v in step(split).values]
    assert parts == [0 + 1 + 2, 3 + 4, 5 + 6]


# ---- datasets


def elements(strategy, dataset):
    """What each replica gets, element by element."""
    return [
        tf.nest.map_structure(
            lambda leaf: [_plain(v) for v in strategy.experimental_local_results(leaf)], element
        )
        for element in strategy.experimental_distribute_dataset(dataset)
    ]


def _plain(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value).numpy().tolist()
    return value.numpy().tolist()


X = np.arange(10, dtype=np.float32).reshape(5, 2)


@pytest.mark.parametrize(
    "structure",
    [
        lambda x: x,
        lambda x: (x, x[:, 0]),
        lambda x: {"a": x, "b": (x[:, 1],)},
        lambda x: ({"a": x}, x[:, 0], x[:, 1]),
        lambda x: (x,),
    ],
    ids=["tensor", "pair", "dict", "dict, target, weight", "tuple of one"],
)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_distributed_dataset_keeps_the_structure_of_its_elements(structure, replicas):
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(3).map(structure)
    strategy = harness.strategy(replicas)
    distributed = strategy.experimental_distribute_dataset(dataset)
    for batch, element in zip(np.split(X, [3]), distributed, strict=True):
        expected = structure(batch)
        tf.nest.assert_same_structure(
            tf.nest.map_structure(lambda leaf: 0, element),
            tf.nest.map_structure(lambda leaf: 0, expected),
        )
        for leaf, whole in zip(tf.nest.flatten(element), tf.nest.flatten(expected), strict=True):
            shares = [np.asarray(s) for s in strategy.experimental_local_results(leaf)]
            np.testing.assert_array_equal(np.concatenate(shares), whole)
            assert [len(s) for s in shares] == share_sizes(len(whole), replicas)


def test_ragged_and_sparse_batches_are_cut_by_rows():
    strategy = harness.strategy(2)
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [], [2, 3]])).batch(3)
    assert elements(strategy, ragged) == [[[[1], []], [[2, 3]]]]
    sparse = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]]))
    assert elements(strategy, sparse.batch(3)) == [[[[1, 0], [0, 2]], [[3, 0]]]]


def test_a_batch_of_fewer_examples_than_replicas_leaves_shares_empty():
    strategy = harness.strategy(3)
    dataset = harness.batches_of([3, 1, 2], np.arange(6))
    assert elements(strategy, dataset) == [[[0], [1], [2]], [[3], [], []], [[4], [5], []]]


def test_shapes_stay_known_where_the_batch_divides_evenly():
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros([8, 3])).batch(4, drop_remainder=True)
    spec = strategy.experimental_distribute_dataset(dataset).element_spec
    assert [value.shape.as_list() for value in spec._value_specs] == [[2, 3]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    tiers.first_of(tf.RaggedTensor.from_tensor, tf.sparse.from_dense),
)
def test_shapes_of_ragged_and_sparse_batches_are_as_in_mirrored_strategy(kind, mirrored):
    whole = tf.data.Dataset.from_tensors({"rows": kind(np.eye(4, dtype=np.float32))})
    for dataset in (whole, whole.unbatch().batch(4)):
        ours, theirs = (
            strategy.experimental_distribute_dataset(dataset)
            for strategy in (harness.strategy(2), mirrored(2))
        )
        assert ours.element_spec == theirs.element_spec
        assert iter(ours).element_spec == iter(theirs).element_spec


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_number_of_global_batches_stays_known(replicas):
    strategy = harness.strategy(replicas)
    dataset = tf.data.Dataset.range(10).batch(4)
    assert int(strategy.experimental_distribute_dataset(dataset).cardinality) == 3
    forever = strategy.experimental_distribute_dataset(dataset.repeat())
    assert int(forever.cardinality) == tf.data.INFINITE_CARDINALITY
    unknown = strategy.experimental_distribute_dataset(dataset.filter(lambda x: True))
    assert int(unknown.cardinality) == tf.data.UNKNOWN_CARDINALITY


def test_an_infinite_shuffled_dataset_can_be_taken_from():
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.range(10).shuffle(10, seed=1).batch(4).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    seen = []
    for size in (4, 4, 2, 4):
        parts = strategy.experimental_local_results(next(iterator))
        assert [len(part) for part in parts] == [size // 2] * 2
        seen += [int(n) for part in parts for n in part]
    assert sorted(seen[:10]) == list(range(10))


def test_a_batch_with_too_few_examples_is_said_once_with_the_arithmetic(caplog):
    for _ in range(2):
        size = batch_sharding.declared_size(tf.data.Dataset.range(9).batch(3, drop_remainder=True))
        batch_sharding.warn_if_small(size, 7)
    assert caplog.text.count("3 examples leaves 4 of 7 replicas without work") == 1


def test_what_declares_no_batch_size_is_not_spoken_of(caplog):
    for dataset in (harness.batches_of([1, 1], np.arange(2)), "no dataset at all"):
        batch_sharding.warn_if_small(batch_sharding.declared_size(dataset), 7)
    batch_sharding.warn_if_small(batch_sharding.declared_size(tf.data.Dataset.range(9).batch(7)), 7)
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_sparse_batches_keep_what_is_known_of_their_shape():
    batches = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(3))).batch(3)
    spec = harness.strategy(2).experimental_distribute_dataset(batches).element_spec
    assert [value.shape.as_list() for value in spec._value_specs] == [[None, 3]] * 2


def test_a_dataset_of_single_examples_is_refused():
    for dataset in (tf.data.Dataset.range(4), tf.data.Dataset.from_tensor_slices(["a", "b"])):
        with pytest.raises((IndexError, ValueError)):
            harness.strategy(2).experimental_distribute_dataset(dataset)


@pytest.mark.parametrize(("examples", "rounds"), [(12, 2), (9, 2), (3, 1)])
def test_elements_of_a_function_are_counted_in_rounds(examples, rounds):
    distributed = harness.strategy(2).distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(examples).batch(3)
    )
    assert int(distributed.cardinality) == rounds == len(list(distributed))


def test_elements_of_a_function_that_are_not_counted_are_endless_or_of_unknown_number():
    asked = tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
    numbers = tf.data.Dataset.range(4)
    unknown, endless = numbers.filter(lambda n: True), numbers.repeat()
    for made, expected in (
        ([numbers, unknown], tf.data.UNKNOWN_CARDINALITY),
        ([endless, unknown], tf.data.INFINITE_CARDINALITY),
        ([numbers, numbers.take(3)], 4),
    ):
        distributed = harness.strategy(2).distribute_datasets_from_function(
            lambda context, made=made: made[context.input_pipeline_id], asked
        )
        assert int(distributed.cardinality) == expected


# ---- autotuning


@pytest.mark.parametrize(
    ("given", "wish", "outcome"),
    [
        ("a dataset", None, False),
        ("a dataset", True, True),
        ("a function", None, False),
        ("a function", True, True),
        ("a pipeline", None, False),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_is_iterated_autotunes_only_where_the_dataset_asks_for_it(
    given, wish, outcome, replicas
):
    """Who collects an iterator that does may wait for a minute."""
    strategy = harness.strategy(replicas)
    options = tf.data.Options()
    if wish is not None:
        options.autotune.enabled = wish
    dataset = tf.data.Dataset.range(8).batch(4).with_options(options)
    distributed = {
        "a dataset": strategy.experimental_distribute_dataset,
        "a function": lambda made: strategy.distribute_datasets_from_function(lambda context: made),
        "a pipeline": lambda made: strategy.experimental_distribute_dataset(
            tfdp.data.pipeline(made.unbatch(), 4, seed=1)
        ),
    }[given](dataset)
    (iterator,) = iter(distributed)._iterators
    assert iterator._dataset.options().autotune.enabled is outcome


# ---- leaves of several lengths


def _of_several_lengths(drop_remainder=False):
    numbers = tf.data.Dataset.range(9).batch(4, drop_remainder)
    more = tf.data.Dataset.range(21).batch(10, drop_remainder)
    return tf.data.Dataset.zip({"a": numbers, "b": more}).map(
        lambda both: {**both, "c": tf.range(2), "none": tf.constant(1)}
    )


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_each_leaf_is_cut_by_its_own_length(drop_remainder):
    dataset = _of_several_lengths(drop_remainder)
    distributed = harness.strategy(3).experimental_distribute_dataset(dataset)
    for batch, parts in zip(dataset, distributed, strict=True):
        for name in "abc":
            found = [part.numpy().tolist() for part in parts[name].values]
            assert [len(part) for part in found] == share_sizes(len(batch[name]), 3)
            assert [*itertools.chain(*found)] == batch[name].numpy().tolist()
        assert [int(part) for part in parts["none"].values] == [1, 1, 1]


def test_of_leaves_that_are_known_to_have_one_length_nothing_more_is_told():
    both = tf.data.Dataset.range(8).map(lambda n: (n, n))
    known = batch_sharding.divide_dataset(both.batch(4, drop_remainder=True), 3).element_spec
    assert len(known) == 2
    _, _, known = batch_sharding.divide_dataset(both.batch(4), 3).element_spec
    assert known.lengths == (-1, -1)
    _, _, known = batch_sharding.divide_dataset(_of_several_lengths(True), 3).element_spec
    assert known.lengths == (4, 10, 2)


def test_shares_are_even_where_those_of_all_leaves_are():
    for size, even in ((6, True), (4, False)):
        more = tf.data.Dataset.range(12).batch(size, drop_remainder=True)
        both = tf.data.Dataset.zip((tf.data.Dataset.range(6).batch(3, drop_remainder=True), more))
        share = batch_sharding.divide_dataset(both, 3).element_spec[0]
        assert batch_sharding.are_even(share) == even


# ---- the shares of one rank


def _sparse(number):
    return tf.sparse.from_dense(tf.one_hot(number, 9))


ONE_RANK = {
    "even": tf.data.Dataset.range(12).batch(6, drop_remainder=True),
    "uneven and empty": tf.data.Dataset.range(13).batch(6),
    "nested": tf.data.Dataset.range(9).map(lambda n: {"x": (n, [n, n]), "y": n}).batch(4),
    "one in a tuple": tf.data.Dataset.from_tensor_slices((np.arange(8),)).batch(4),
    "ragged": tf.data.Dataset.range(7).map(tf.range).ragged_batch(4),
    "sparse": tf.data.Dataset.range(7).map(_sparse).batch(4),
    "endless": tf.data.Dataset.range(8).batch(4).repeat(),
}


@pytest.mark.parametrize("name", ONE_RANK)
@pytest.mark.parametrize("rank", [0, 2])
def test_one_rank_cuts_for_itself_what_all_ranks_cut(name, rank):
    dataset = ONE_RANK[name]
    own = batch_sharding.divide_dataset(dataset, 3, range(rank, rank + 1))
    every = batch_sharding.divide_dataset(dataset, 3)
    assert own.element_spec == every.element_spec
    assert own.cardinality() == dataset.cardinality()
    expected = list(every.take(12))[rank::3]
    shares = list(own.take(4))
    assert len(shares) == len(expected)
    for share, wanted in zip(shares, expected, strict=True):
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            *(tf.nest.flatten(each, expand_composites=True) for each in (share, wanted)),
        )


@pytest.mark.parametrize("size", [1, 5, 6])
def test_a_share_of_one_rank_has_known_rows_only_where_the_batch_divides_evenly(size):
    batches = tf.data.Dataset.range(12).batch(size, drop_remainder=True)
    for ranks in (range(1), range(1, 2), range(2, 3)):
        share, _ = batch_sharding.divide_dataset(batches, 3, ranks).element_spec
        assert share.shape.as_list() == [2 if size == 6 else None]
        assert batch_sharding.are_even(share) == (size == 6)


def test_one_rank_makes_no_dataset_of_each_batch():
    for ranks, makes_some in ((range(2), True), (range(1, 2), False)):
        divided = batch_sharding.divide_dataset(tf.data.Dataset.range(8).batch(4), 2, ranks)
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(divided)
        ).numpy()
        assert (b"FlatMapDataset" in graph) == makes_some


@pytest.mark.slow
@pytest.mark.parametrize("given", ["a dataset", "a function", "a pipeline"])
def test_no_iterator_on_a_device_autotunes(given):
    """Who collects one that does may wait for a minute."""
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.range(8).batch(4)
    # What a user asks for is done by TensorFlow's iterators over the devices, as it is for GPUs.
    asked = tf.distribute.InputOptions(experimental_per_replica_buffer_size=1)
    distributed = {
        "a dataset": lambda: strategy.experimental_distribute_dataset(dataset, asked),
        "a function": lambda: strategy.distribute_datasets_from_function(lambda context: dataset),
        "a pipeline": lambda: strategy.experimental_distribute_dataset(
            tfdp.data.pipeline(dataset.unbatch(), 4, seed=1), asked
        ),
    }[given]()
    (iterator,) = iter(distributed)._iterators
    on_devices = iterator._iterator._device_iterators
    assert len(on_devices) == 2
    for fetching in on_devices:
        assert fetching._dataset.options().autotune.enabled is False
