"""Pipelines in loops of one's own: shares in order, counted when a step takes them."""

import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp

IDS = np.arange(21)


def strategy(replicas):
    return tfdp.DataParallelStrategy(devices=[f"CPU:{rank}" for rank in range(replicas)])


def distributed(replicas, size=8, **options):
    under = strategy(replicas)
    pipeline = tfdp.data.pipeline(IDS, size, seed=1, **options)
    return under, pipeline, under.experimental_distribute_dataset(pipeline)


def whole(under, batch):
    return [v for part in under.experimental_local_results(batch) for v in part.numpy().tolist()]


def place(pipeline):
    state = pipeline.state()
    return state["epoch"], state["position"]


def plain(pipeline):
    return [batch.numpy().tolist() for batch in pipeline.from_start()]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_batches_and_places_are_those_of_one_device(replicas):
    under, pipeline, dataset = distributed(replicas)
    seen = []
    for number, batch in enumerate(dataset):
        seen.append(whole(under, batch))
        assert place(pipeline) == [(0, 8), (0, 16), (1, 0)][number]
    assert seen == plain(pipeline)
    again = [whole(under, batch) for batch in dataset]
    assert sorted(np.concatenate(again)) == IDS.tolist()
    assert again != seen
    assert place(pipeline) == (2, 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_iterator_in_a_graph_is_counted(replicas):
    under, pipeline, dataset = distributed(replicas)
    expected = plain(pipeline)

    @tf.function
    def steps(iterator):
        return [next(iterator), next(iterator)]

    seen = [whole(under, batch) for batch in steps(iter(dataset))]
    assert seen == expected[:2]
    assert place(pipeline) == (0, 16)
    assert pipeline.progress.waited_seconds > 0


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("over", ["the dataset", "its iterator"])
def test_a_loop_in_a_graph_is_counted(replicas, over):
    under, pipeline, dataset = distributed(replicas)

    @tf.function
    def total(batches):
        found = tf.constant(0, tf.int64)
        for batch in batches:
            sums = under.run(tf.reduce_sum, args=(batch,))
            found += under.reduce("SUM", sums, axis=None)
        return found

    assert total(dataset if over == "the dataset" else iter(dataset)) == IDS.sum()
    assert place(pipeline) == (1, 0)
    assert pipeline.progress.batches == 3


def test_a_loop_that_is_left_goes_on_with_the_next_batch():
    under, pipeline, dataset = distributed(2)
    expected = plain(pipeline)
    first = whole(under, next(iter(dataset)))
    assert [first, *(whole(under, batch) for batch in dataset)] == expected


@pytest.mark.slow
def test_a_step_that_was_traced_with_one_pipeline_counts_for_the_next():
    under, first, dataset = distributed(2)
    second = tfdp.data.pipeline(IDS, 8, seed=2)

    @tf.function
    def step(iterator):
        return under.run(tf.identity, args=(next(iterator),))

    step(iter(dataset))
    seen = whole(under, step(iter(under.experimental_distribute_dataset(second))))
    assert step.experimental_get_tracing_count() == 1
    assert seen == plain(second)[0]
    assert place(first) == place(second) == (0, 8)


def test_one_replica_gets_tensors_and_several_their_shares():
    _, _, one = distributed(1)
    assert isinstance(next(iter(one)), tf.Tensor)
    _, _, two = distributed(2)
    assert isinstance(two.element_spec, tf.distribute.DistributedValues) or hasattr(
        two.element_spec, "_value_specs"
    )


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_each_replica_reads_its_own_examples_only(replicas, tmp_path):
    """By the bytes of a file of large records: the share, and no more."""
    path = str(tmp_path / "large.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(24):
            writer.write(bytes([number]) * 100_000)
    for rank in range(replicas):
        source = tfdp.data.sources.TFRecordSource(path)
        shares = tfdp.data.pipeline(source, 6, seed=1).for_replicas(replicas, range(rank, rank + 1))
        records = [record for share in shares for record in share.numpy()]
        assert len(records) == 24 // replicas
        assert source.bytes_read <= 1.05 * 24 * 100_000 / replicas


def test_what_the_ranks_read_of_a_stream_is_said_once(caplog):
    pipeline = tfdp.data.pipeline(tf.data.Dataset.range(9), 3, seed=1)
    for _ in range(2):
        pipeline.say_what_is_read(2)
    assert caplog.text.count("Each of 2 processes reads all of") == 1
    indexed = tfdp.data.pipeline(IDS, 3, seed=1)
    indexed.say_what_is_read(2)
    assert "arrays" not in caplog.text.split("reads all of")[0]


# ---- a process with one CPU replica


def fetching(dataset):
    (worker,) = iter(dataset)._iterators
    return worker._iterator


@pytest.mark.parametrize("replicas", [1, 2])
def test_cpus_have_one_plain_iterator_that_reads_ahead(replicas):
    _, _, dataset = distributed(replicas)
    iterator = fetching(dataset)
    assert isinstance(iterator, tf.data.Iterator)
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(iterator._dataset)
    ).numpy()
    assert b"PrefetchDataset" in graph


@pytest.mark.slow
def test_a_share_lies_on_its_device_and_what_the_user_asks_for_is_done():
    for devices in (["CPU:1"], ["CPU:0", "CPU:1"]):
        pipeline = tfdp.data.pipeline(IDS, 8, seed=1)
        under = tfdp.DataParallelStrategy(devices=devices)
        share = next(iter(under.experimental_distribute_dataset(pipeline)))
        places = [each.device for each in under.experimental_local_results(share)]
        assert all(map(str.endswith, places, devices)), places
        assert whole(under, share) == plain(pipeline)[0]
    asked = tf.distribute.InputOptions(experimental_per_replica_buffer_size=3)
    dataset = strategy(1).experimental_distribute_dataset(pipeline, asked)
    assert not isinstance(fetching(dataset), tf.data.Iterator)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_iterator_in_a_graph_says_at_each_call_that_it_is_at_its_end(replicas):
    under, pipeline, dataset = distributed(replicas)

    @tf.function
    def step(iterator):
        return next(iterator)

    iterator = iter(dataset)
    assert [whole(under, step(iterator)) for _ in range(3)] == plain(pipeline)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    assert pipeline.progress.batches == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_iterator_in_a_graph_does_not_go_on_after_an_error(replicas):
    def fails_at_9(number):
        with tf.control_dependencies([tf.debugging.Assert(number != 9, ["number nine"])]):
            return tf.identity(number)

    under = strategy(replicas)
    pipeline = tfdp.data.pipeline(IDS, 8, seed=1, shuffle=False, map_fn=fails_at_9)
    iterator = iter(under.experimental_distribute_dataset(pipeline))

    @tf.function
    def step(iterator):
        return next(iterator)

    assert whole(under, step(iterator)) == list(range(8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="number nine"):
        step(iterator)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"out of step.*Make a new one"):
        step(iterator)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_iterator_makes_its_spec_once(replicas):
    iterator = iter(distributed(replicas)[2])
    spec = iterator._type_spec
    assert spec is iterator._type_spec
    assert spec._component_specs is spec._component_specs
    assert iterator.shards is iterator.shards


@pytest.mark.parametrize("given", ["a pipeline", "a dataset"])
def test_the_wait_is_timed_only_where_somebody_reads_it(given):
    under, pipeline, _ = distributed(2)
    batches = pipeline if given == "a pipeline" else tf.data.Dataset.range(8).batch(4)
    iterator = iter(under.experimental_distribute_dataset(batches))
    step = tf.function(lambda iterator: next(iterator))
    graph = step.get_concrete_function(iterator).graph
    timed = [op for op in graph.get_operations() if op.type == "Timestamp"]
    assert bool(timed) == (given == "a pipeline")
