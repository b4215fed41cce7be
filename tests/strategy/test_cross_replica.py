"""What is reduced, gathered and mirrored between replica functions, wherever the values come from.

`in_cluster.py` runs `check_everything` in processes, too.
"""

import harness
import numpy as np
import pytest
import tensorflow as tf

import tfdp

DTYPES = ["bool", "uint8", "bfloat16", "complex64"]
SHARED = np.float32([5, 6])


def context():
    return tf.distribute.get_replica_context()


def merged(strategy, merge, *values):
    """What `merge` makes of the values in the cross-replica context, as each replica gets it."""
    return strategy.run(lambda *own: context().merge_call(merge, args=own), args=values)


def reduced(op):
    return lambda strategy, own: strategy.extended.reduce_to(op, own, own)


def reduced_in_batch(op):
    return lambda strategy, *own: strategy.extended.batch_reduce_to(op, [(v, v) for v in own])


def mirrored(strategy, own):
    (first, *_) = strategy.experimental_local_results(own)
    return strategy.extended.broadcast_to(first, own)


def everything(strategy, numbers, texts, rows, shared):
    """Each way of values to all replicas, by its name; the arguments are those of a function."""
    extended = strategy.extended

    def gathered(numbers, texts, rows):
        casts = {f"all_gather of {name}": tf.cast(numbers, name) for name in DTYPES}
        own = {"all_gather": numbers, "all_gather of texts": texts}
        own |= {"all_gather of what is shared": shared, "all_gather of an array": SHARED}
        return context().all_gather(own | casts, axis=0) | {
            "all_gather of an axis": context().all_gather(rows, axis=1),
            "whole_batch": tfdp.whole_batch(rows),
            "whole_batch of texts": tfdp.whole_batch(texts),
        }

    def slices(strategy, own):
        (first, *_) = strategy.experimental_local_results(own)
        own = tf.IndexedSlices(first[tf.newaxis], tf.constant([1]), tf.constant([3, 2]))
        return tf.convert_to_tensor(extended.reduce_to("SUM", own, ""))

    found = strategy.run(gathered, args=(numbers, texts, rows)) | {
        "gather": strategy.gather(numbers, 0),
        "gather of texts": strategy.gather(texts, 0),
        "gather of what is shared": strategy.gather(strategy.run(lambda: shared), 0),
        "reduce": strategy.reduce("SUM", numbers, axis=None),
        "reduce of an axis": strategy.reduce("MEAN", rows, axis=0),
        "reduce_to": merged(strategy, reduced("SUM"), numbers),
        "reduce_to, mean": merged(strategy, reduced("MEAN"), numbers),
        "reduce_to of an array": merged(strategy, reduced("MEAN"), SHARED),
        "reduce_to a device": extended.reduce_to("SUM", numbers, "/device:CPU:0"),
        "batch_reduce_to": merged(strategy, reduced_in_batch("SUM"), numbers, numbers)[1],
        "batch_reduce_to, mean": merged(strategy, reduced_in_batch("MEAN"), numbers)[0],
        "broadcast_to": merged(strategy, mirrored, numbers),
        "broadcast_to of texts": merged(strategy, mirrored, texts),
        "broadcast_to of a number": extended.broadcast_to(2.0, numbers),
    }
    if len(extended.worker_devices) == 1:
        found["reduce_to of slices"] = merged(strategy, slices, numbers)
    return found


def expected(numbers, texts, rows):
    """What `everything` is, of the values of all replicas."""
    texts, count = np.concatenate(texts), len(numbers)
    of_shared = np.concatenate([SHARED] * count)
    total = np.sum(numbers, 0)
    found = {
        "all_gather": np.concatenate(numbers),
        "all_gather of an axis": np.concatenate(rows, 1),
        "all_gather of texts": texts,
        "all_gather of what is shared": of_shared,
        "all_gather of an array": of_shared,
        "whole_batch": np.concatenate(rows),
        "whole_batch of texts": texts,
        "gather": np.concatenate(numbers),
        "gather of texts": texts,
        "gather of what is shared": of_shared,
        "reduce": total,
        "reduce of an axis": np.concatenate(rows).mean(0),
        "reduce_to": total,
        "reduce_to, mean": total / count,
        "reduce_to of an array": SHARED,
        "reduce_to a device": total,
        "batch_reduce_to": total,
        "batch_reduce_to, mean": total / count,
        "broadcast_to": numbers[0],
        "broadcast_to of texts": texts[:2],
        "broadcast_to of a number": 2.0,
        "reduce_to of slices": np.stack([0 * total, total, 0 * total]),
    }
    for name in DTYPES:
        found[f"all_gather of {name}"] = np.concatenate(numbers).astype(
            tf.as_dtype(name).as_numpy_dtype
        )
    return found


def check_everything(strategy, graph):
    """Asserts that all replicas have the values that NumPy has of all replicas' together."""
    count = strategy.num_replicas_in_sync
    numbers = [np.float32([replica, 10]) for replica in range(count)]
    texts = [np.array([f"{replica}", "é" * replica]) for replica in range(count)]
    rows = [np.float32([[replica, 1], [2, 3]]) for replica in range(count)]
    arguments = [harness.per_replica(strategy, each) for each in (numbers, texts, rows)]
    execute = tf.function(everything, autograph=False) if graph else everything
    found = execute(strategy, *arguments, tf.constant(SHARED))
    wanted = expected(numbers, texts, rows)
    for name, value in found.items():
        for copy in strategy.experimental_local_results(value):
            copy = np.asarray(copy)
            if copy.dtype == object:
                copy = np.char.decode(copy.astype("S"))
            np.testing.assert_array_equal(copy, wanted[name], err_msg=name)


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_of_a_process_get_what_all_of_them_have(replicas, graph):
    check_everything(harness.strategy(replicas), graph)


def test_the_sum_of_what_replicas_share_is_refused_with_the_fix(execute):
    strategy = harness.strategy(2)
    shared = tf.constant(SHARED)
    for reduction in (reduced("SUM"), reduced_in_batch("SUM")):
        with pytest.raises(ValueError, match=r"a value of each replica.*tf\.identity\(value\)"):
            execute(lambda reduction=reduction: merged(strategy, reduction, shared))


def test_one_replica_sums_a_variable_to_itself(execute):
    strategy = harness.strategy(1)
    with strategy.scope():
        variable = tf.Variable(SHARED)
    np.testing.assert_array_equal(
        execute(lambda: strategy.reduce("SUM", variable, axis=None)), SHARED
    )


def test_one_replica_reduces_a_flag_to_itself(execute):
    strategy = harness.strategy(1)
    flag = execute(
        lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(True)), axis=None)
    )
    assert flag.numpy() is np.True_


def test_slices_are_not_gathered(execute):
    strategy = harness.strategy(2)

    @tf.autograph.experimental.do_not_convert
    def replica():
        return tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]), tf.constant([2, 1]))

    with pytest.raises(NotImplementedError, match=r"must be tensors.*Gather their `values`"):
        execute(lambda: strategy.gather(strategy.run(replica), 0))


def test_a_number_has_no_axis_to_be_gathered_along(execute):
    with pytest.raises(ValueError, match="same number of axes and an axis 0"):
        execute(lambda: harness.strategy(2).gather(3.0, 0))
