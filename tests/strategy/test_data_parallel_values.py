"""The values and the data that `tfdp.DataParallelStrategy` gives to its replicas."""

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp.base.warn_once import warn_once

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def test_local_results_are_the_replicas_values_in_the_order_of_ranks(execute):
    strategy = harness.strategy(4)
    value = harness.per_replica(strategy, np.float32([5, 3, 8, 1]))
    results = execute(lambda: strategy.experimental_local_results(value))
    assert isinstance(results, tuple)
    np.testing.assert_array_equal(results, [5, 3, 8, 1])
    assert strategy.experimental_local_results(7) == (7,)


def test_values_from_a_function_belong_to_the_replica_that_they_were_made_for(values):
    strategy = harness.strategy(3)
    contexts = []

    def value(context):
        contexts.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return {"rank": tf.constant(context.replica_id_in_sync_group), "python": "text"}

    made = strategy.experimental_distribute_values_from_function(value)
    assert contexts == [(0, 3), (1, 3), (2, 3)]
    np.testing.assert_array_equal(values(made["rank"]), [0, 1, 2])
    np.testing.assert_array_equal(
        values(strategy.run(lambda v: v["rank"] * 10, args=(made,))), [0, 10, 20]
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize(("examples", "batch"), [(12, 6), (10, 6), (7, 4)])
def test_a_distributed_dataset_cuts_every_global_batch_in_order(replicas, examples, batch):
    strategy = harness.strategy(replicas)
    x = np.arange(examples * 2, dtype=np.float32).reshape(examples, 2)
    dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": np.arange(examples)}).batch(batch)
    distributed = strategy.experimental_distribute_dataset(dataset)
    for _ in range(2):  # epochs
        starts = range(0, examples, batch)
        for start, element in zip(starts, distributed, strict=True):
            for name, whole in (("x", x), ("y", np.arange(examples))):
                parts = [np.asarray(p) for p in strategy.experimental_local_results(element[name])]
                expected = whole[start : start + batch]
                np.testing.assert_array_equal(np.concatenate(parts), expected)
                sizes = [len(part) for part in parts]
                assert max(sizes) - min(sizes) <= 1, sizes
                assert sizes == sorted(sizes, reverse=True), sizes


@pytest.mark.slow
def test_a_loop_over_a_distributed_dataset_can_be_in_a_graph():
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.range(1, 13).map(lambda n: tf.cast(n, tf.float32)).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)

    def replica(x):
        return tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(x))

    @tf.function
    def epoch():
        total = tf.constant(0.0)
        for batch in distributed:
            total += strategy.reduce(MEAN, strategy.run(replica, args=(batch,)), axis=None)
        return total

    assert epoch().numpy() == epoch().numpy() == 78.0


def test_a_dataset_whose_batches_leave_replicas_without_work_is_warned_of(caplog):
    warn_once.cache_clear()
    strategy = harness.strategy(4)
    with caplog.at_level("WARNING", logger="tfdp"):
        batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(3))
    assert "A batch of 3 examples leaves 1 of 4 replicas without work" in caplog.text
    shares = [strategy.experimental_local_results(batch) for batch in batches]
    assert [[v.numpy().tolist() for v in share] for share in shares] == [
        [[n], [n + 1], [n + 2], []] for n in range(0, 12, 3)
    ]


def test_datasets_from_a_function_give_each_replica_whole_elements():
    strategy = harness.strategy(3)
    contexts = []

    def make(context):
        contexts.append(context)
        batch_size = context.get_per_replica_batch_size(6)
        return tf.data.Dataset.range(12).batch(batch_size)

    elements = [
        [np.asarray(v).tolist() for v in strategy.experimental_local_results(element)]
        for element in strategy.distribute_datasets_from_function(make)
    ]
    assert elements == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == 3


# ---- a pipeline for each replica

PER_REPLICA = tf.distribute.InputReplicationMode.PER_REPLICA


def options_of_replicas(**options):
    return tf.distribute.InputOptions(experimental_replication_mode=PER_REPLICA, **options)


def numbers_of(context):
    """What a pipeline reads: the last ends last."""
    pipeline = context.input_pipeline_id
    return tf.data.Dataset.range(10 * pipeline, 10 * pipeline + 4 + 2 * pipeline).batch(2)


@pytest.mark.parametrize("fetched", [True, False])
def test_a_function_may_make_a_pipeline_for_each_replica(fetched, mirrored):
    options = options_of_replicas(experimental_fetch_to_device=fetched)
    told, elements = [], []
    for strategy in (mirrored(2), harness.strategy(2)):
        contexts = []

        def make(context):
            contexts.append(context)  # noqa: B023
            return numbers_of(context)

        distributed = strategy.distribute_datasets_from_function(make, options)
        told.append([(each.input_pipeline_id, each.num_input_pipelines) for each in contexts])
        elements.append(
            [
                [np.asarray(own).tolist() for own in strategy.experimental_local_results(element)]
                for element in distributed
            ]
        )
    assert told == [[(0, 2), (1, 2)]] * 2
    *whole, last = elements[1]
    assert whole == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]] == elements[0][:2]
    assert last == [[], [14, 15]]
    assert distributed.cardinality == 3


def test_replicas_with_pipelines_of_their_own_train_as_one_device_on_all_of_it():
    def pairs(rows):
        return tf.cast(rows, tf.float32)[:, None] / 10, tf.cast(rows, tf.float32)

    def used(batches, strategy=None):
        model = harness.build_in_scope(lambda: harness.dense_model(features=1), strategy and 2)
        seen = model.fit(batches, epochs=2, verbose=0).history
        return seen, model.predict(batches, verbose=0), model.get_weights()

    strategy = harness.strategy(2)
    many = used(
        strategy.distribute_datasets_from_function(
            lambda context: numbers_of(context).map(pairs), options_of_replicas()
        ),
        strategy,
    )
    rounds = ([0, 1, 10, 11], [2, 3, 12, 13], [14, 15])
    whole = tf.data.Dataset.from_generator(lambda: rounds, output_signature=tf.TensorSpec([None]))
    harness.assert_close(many, used(whole.map(pairs)), 1e-5)


def test_a_pipeline_for_each_replica_leaves_later_datasets_as_they_were():
    """TensorFlow's strategy keeps a pipeline for each replica from then on."""
    strategy, contexts = harness.strategy(2), []
    strategy.distribute_datasets_from_function(numbers_of, options_of_replicas())

    def make(context):
        contexts.append(context)
        return numbers_of(context)

    strategy.distribute_datasets_from_function(make)
    assert [context.num_input_pipelines for context in contexts] == [1]
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    (batch,) = batches
    assert [own.numpy().tolist() for own in batch.values] == [[0, 1], [2, 3]]


def test_batches_are_cut_or_each_replica_has_a_pipeline_but_not_both(mirrored):
    for strategy in (mirrored(2), harness.strategy(2)):
        with pytest.raises(NotImplementedError, match="PER_REPLICA") as raised:
            strategy.experimental_distribute_dataset(
                tf.data.Dataset.range(4).batch(4), options_of_replicas()
            )
    assert "`strategy.distribute_datasets_from_function(fn, options)`" in str(raised.value)


# ---- values of replicas where there is no replica


@pytest.mark.parametrize("inside", [False, True], ids=["eagerly", "in a graph"])
def test_values_of_replicas_are_no_tensor_outside_of_replicas_as_in_mirrored_strategy(
    inside, mirrored
):
    def looped(value):
        return [each for each in value]  # noqa: C416 # AutoGraph converts loops only

    uses = {
        looped: (TypeError, "'PerReplica' object is not iterable"),
        tf.reduce_sum: (ValueError, "not inside a replica context"),
        (lambda value: value + 1): (TypeError, "unsupported operand"),
        (lambda value: value[0]): (TypeError, "not subscriptable"),
    }
    for strategy in (mirrored(2), harness.strategy(2)):
        batch = next(
            iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
        )
        for value in (batch, strategy.run(lambda: tf.ones([2]))):
            for use, (kind, words) in uses.items():
                with pytest.raises(kind, match=words):
                    (tf.function(use) if inside else use)(value)
