import numpy as np
import pytest
import tensorflow as tf
from partition.check import compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import of_any_axes

from tfdp.errors import PartitionError

how = tf.VariableAggregation
ON_READ = tf.VariableSynchronization.ON_READ


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


def made(replicas, value, **options):
    with strategy(replicas).scope():
        return tf.Variable(value, **options)


@pytest.mark.parametrize("count", [7, 2])
def test_what_is_written_is_whole_on_every_copy(count):
    total, last = made(3, tf.zeros([3])), made(3, tf.zeros([2, 3]))

    @strategy(3).partitioned
    def step(x):
        total.assign_add(tf.reduce_sum(x, 0))
        last.assign(x[-2:])
        return total.read_value() * 2

    x = rows(count)
    np.testing.assert_allclose(step(x), 2 * x.sum(0), rtol=1e-5, atol=1e-6)
    for variable, expected in ((total, x.sum(0)), (last, x[-2:])):
        copies = [copy.numpy() for copy in variable.values]
        np.testing.assert_allclose(copies[0], expected, rtol=1e-5, atol=1e-6)
        assert all((copy == copies[0]).all() for copy in copies)


def test_a_sum_of_shares_is_written_without_a_collective():
    shares = made(3, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(3).partitioned
    def step(x):
        shares.assign_add(tf.reduce_sum(x, 0))
        return tf.constant(0.0)

    for _ in range(2):
        step(rows(7))
    assert not step.report.exchanged
    np.testing.assert_allclose(shares.read_value(), 2 * rows(7).sum(0), rtol=1e-5, atol=1e-6)


def test_a_sum_of_shares_is_read_whole_and_set():
    shares = made(3, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(3).partitioned
    def step(x):
        shares.assign(tf.ones([3]))
        shares.assign_sub(tf.reduce_sum(x, 0))
        return tf.square(shares.read_value())

    expected = 1 - rows(7).sum(0)
    np.testing.assert_allclose(step(rows(7)), expected**2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shares.read_value(), expected, rtol=1e-4, atol=1e-5)


def test_a_mean_of_copies_is_one_value():
    mean = made(3, tf.ones([3]), synchronization=ON_READ, aggregation=how.MEAN, trainable=False)

    @strategy(3).partitioned
    def step(x):
        mean.assign(0.5 * mean.read_value() + tf.reduce_mean(x, 0))
        return tf.exp(mean.read_value())

    expected = 0.5 + rows(7).mean(0)
    np.testing.assert_allclose(step(rows(7)), np.exp(expected), rtol=1e-5)
    np.testing.assert_allclose(mean.read_value(), expected, rtol=1e-5)


def test_rows_of_a_table_are_written_by_all():
    table = made(3, tf.zeros([5, 3]))

    @strategy(3).partitioned
    def step(x, places):
        table.scatter_add(tf.IndexedSlices(x, places))
        return tf.reduce_sum(table)

    x, places = rows(7), np.array([0, 4, 4, 1, 0, 3, 4])
    step(x, places)
    expected = np.zeros([5, 3], "float32")
    np.add.at(expected, places, x)
    for copy in table.values:
        np.testing.assert_allclose(copy.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [7, 2])
def test_rows_of_a_table_are_written_by_places_of_any_number_of_axes(count):
    table, points = made(3, tf.zeros([5, 3])), made(3, tf.zeros([5, 3]))

    @strategy(3).partitioned
    def step(x, places):
        tf.raw_ops.ResourceScatterAdd(
            resource=table.handle, indices=of_any_axes(places), updates=of_any_axes(x)
        )
        tf.raw_ops.ResourceScatterNdSub(
            ref=points.handle, indices=of_any_axes(places[:, None]), updates=of_any_axes(x)
        )
        return table + points

    x, places = rows(count), np.array([0, 4, 4, 1, 0, 3, 4])[:count]
    found = step(x, places)
    expected = np.zeros([5, 3], "float32")
    np.add.at(expected, places, x)
    np.testing.assert_allclose(found, np.zeros([5, 3]), atol=1e-6)
    for one, other in zip(table.values, points.values, strict=True):
        np.testing.assert_allclose(one.numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other.numpy(), -expected, rtol=1e-5, atol=1e-6)


def test_what_is_asked_of_a_variable_is_the_same_for_all():
    table, count = made(3, tf.zeros([5, 3])), made(3, tf.constant(4, tf.int64))

    @strategy(3).partitioned
    def step(x):
        shape = tf.raw_ops.VariableShape(input=table.handle)
        before = tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=9, T=tf.int64)
        return shape, before, tf.raw_ops.VarIsInitializedOp(resource=table.handle), tf.shape(x)

    shape, before, is_there, _ = step(rows(7))
    assert (shape.numpy().tolist(), int(before), bool(is_there)) == ([5, 3], 4, True)
    assert [int(copy) for copy in count.values] == [5] * 3


def test_a_part_of_a_sum_of_shares_is_not_written():
    shares = made(2, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(2).partitioned
    def step(x):
        tf.raw_ops.ResourceScatterUpdate(
            resource=shares.handle, indices=[0], updates=[tf.reduce_sum(x)]
        )
        return x

    with pytest.raises(PartitionError, match="each replica has a share of"):
        step(rows(4))


def test_integers_count_as_on_one_device():
    count = made(3, tf.constant(0, tf.int64))

    @strategy(3).partitioned
    def step(x):
        count.assign_add(1)
        count.assign_add(tf.cast(tf.shape(x)[0], tf.int64))
        return count.read_value()

    assert [int(step(rows(size))) for size in (7, 2)] == [8, 11]


def check_variables(case, values, function, **options):
    """Asserts that two calls give and write the same on replicas as on one device.

    Args:
      case: The batch.
      values: What the variables hold first, by name.
      function: A function of the variables and the case's tensor.
      options: Those of the variables on replicas.
    """
    one = {name: tf.Variable(value) for name, value in values.items()}
    many = {name: made(case.replicas, value, **options) for name, value in values.items()}
    single = tf.function(lambda x: function(one, case.tensor(x)), autograph=False)
    partitioned = strategy(case.replicas).partitioned(lambda x: function(many, case.tensor(x)))
    for scale in (1, 2):
        batch = case.batch * scale
        compare(single(tf.constant(batch)), partitioned(batch), f"{case.replicas} replicas")
        for name, variable in one.items():
            if options:
                compare(variable.read_value(), many[name].read_value(), name)
            else:
                for copy in getattr(many[name], "values", [many[name]]):
                    compare(variable.read_value(), copy.read_value(), name)
    return partitioned.report


def looked_up(variable, indices):
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=indices, dtype=tf.float32)


@of_drawn_batches
def test_what_is_assigned_and_read_is_that_of_one_device_wherever_the_batch_is(case):
    shape = [size for at, size in enumerate(case.shape) if at != case.axis]
    assign = case.choose(["assign_add", "assign_sub", "assign"])
    begin = case.choose([0, -1])
    values = {
        "all": np.ones(case.shape, "float32"),
        "sum": np.ones(shape, "float32"),
        "mean": np.ones(shape, "float32"),
        "scalar": np.float32(3),
        "count": np.int64(5),
        "slice": np.ones([3, *shape], "float32"),
    }

    def function(v, t):
        found = [v["sum"] * 2, t * v["all"], t + v["scalar"]]
        getattr(v["all"], assign)(t)
        found += [v["all"] + t, tf.reduce_sum(v["all"].read_value(), case.axis)]
        getattr(v["sum"], assign)(tf.reduce_sum(t, case.axis))
        v["mean"].assign(0.5 * v["mean"] + tf.reduce_mean(t, case.axis))
        getattr(v["scalar"], assign)(tf.reduce_max(t))
        v["count"].assign_add(tf.cast(tf.shape(t)[case.axis], tf.int64))
        v["slice"][begin].assign(tf.reduce_sum(t, case.axis))
        v["slice"][1:2].assign(tf.reduce_max(t, case.axis)[None])
        return [*found, v["sum"] + v["mean"], v["slice"][1:], v["count"] + 1, tf.shape(v["all"])]

    check_variables(case, values, function)


@of_drawn_batches
def test_rows_that_are_written_by_drawn_indices_are_those_of_one_device(case):
    size = case.choose([5, 2, 9])
    behind = case.shape[1:]
    number = case.choose(range(1, case.rank + 1))
    values = {name: np.ones([size, *behind], "float32") for name in ("a", "b", "c", "d")}
    values["points"] = np.ones([size, *case.shape[number:]], "float32")
    values["vector"] = np.ones([size], "float32")
    kinds = [case.choose(["Add", "Sub", "Max", "Min"]) for _ in range(4)]

    def function(v, t):
        whole, rows = tf.cumsum(t, case.axis), tf.range(tf.shape(t)[0]) % size
        first, all_first = (
            tf.cast(tf.reduce_max(each, range(1, case.rank)), tf.int32) % size
            for each in (t, whole)
        )
        some, all_some = (
            tf.cast(tf.reduce_max(each, range(number, case.rank)), tf.int32) % size
            for each in (t, whole)
        )

        def write(kind, name, indices, updates):
            raw = getattr(tf.raw_ops, f"ResourceScatter{kind}")
            place = {"ref" if kind.startswith("Nd") else "resource": v[name].handle}
            raw(**place, indices=indices, updates=updates)

        write(kinds[0], "a", first, t)
        write(kinds[1], "b", all_first, t)
        write(kinds[2], "c", first, whole)
        write(kinds[3], "d", rows, tf.reduce_sum(t, 0)[None] * tf.ones_like(t))
        write(kinds[1], "points", some, t)
        write("NdAdd", "points", all_some[..., None], t)
        write("NdSub", "points", some[..., None], whole)
        write("Update", "a", [0], tf.reduce_sum(t, 0)[None])
        write("NdUpdate", "b", [[1]], tf.reduce_max(t, 0)[None])
        write("Mul", "d", [0, 1], tf.reduce_max(t))
        write("Div", "d", [1], tf.reduce_mean(t))
        write("Add", "vector", tf.cast(tf.reshape(t, [-1]), tf.int32) % size, tf.reduce_max(t))
        return [
            looked_up(v["a"], first),
            looked_up(v["b"], all_first) + t,
            tf.raw_ops.ResourceGatherNd(
                resource=v["points"].handle, indices=some[..., None], dtype=tf.float32
            )
            * t,
            tf.gather(v["vector"], some),
        ]

    check_variables(case, values, function)


@of_drawn_batches
def test_what_optimizers_write_is_that_of_one_device_wherever_the_batch_is(case):
    size = case.choose([5, 2])
    behind = case.shape[1:]
    values = {name: np.full([size, *behind], 0.5, "float32") for name in ("w", "m", "sparse", "s")}

    def function(v, t):
        indices = tf.cast(tf.reduce_max(t, range(1, case.rank)), tf.int32) % size
        gradient = tf.math.unsorted_segment_sum(t, indices, size)
        handle = {name: variable.handle for name, variable in v.items()}
        tf.raw_ops.ResourceApplyGradientDescent(var=handle["w"], alpha=0.1, delta=gradient)
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=handle["w"],
            accum=handle["m"],
            lr=tf.reduce_mean(t) / 100,
            grad=tf.square(gradient),
            momentum=0.9,
        )
        # Of a row that is there twice the second gradient meets what the first one has written.
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=handle["sparse"],
            accum=handle["s"],
            lr=0.1,
            epsilon=1e-7,
            grad=t,
            indices=indices,
        )
        return [v["w"] + v["m"], looked_up(v["sparse"], indices)]

    check_variables(case, values, function)


@of_drawn_batches
def test_shares_of_a_sum_of_any_batch_are_those_of_one_device(case):
    shape = [size for at, size in enumerate(case.shape) if at != case.axis]
    values = {"sum": np.ones(shape, "float32"), "last": np.ones(case.shape, "float32")}
    options = {"synchronization": ON_READ, "aggregation": how.SUM, "trainable": False}
    shares = case.choose(["assign_add", "assign_sub", "assign"])

    def function(v, t):
        v["sum"].assign(tf.ones_like(tf.reduce_max(t, case.axis)))
        getattr(v["sum"], shares)(tf.reduce_sum(t, case.axis))
        v["sum"].assign_add(tf.reduce_max(t, case.axis))
        v["sum"].assign_sub(3 * v["sum"].read_value())
        v["last"].assign(t)
        getattr(v["last"], shares)(t * v["last"].read_value())
        return [v["sum"] * 2, tf.square(v["sum"].read_value()), v["last"] + t]

    check_variables(case, values, function, **options)


@of_drawn_batches
def test_means_of_copies_of_any_batch_are_those_of_one_device(case):
    shape = [size for at, size in enumerate(case.shape) if at != case.axis]
    values = {"mean": np.ones(shape, "float32"), "last": np.ones(case.shape, "float32")}
    options = {"synchronization": ON_READ, "aggregation": how.MEAN, "trainable": False}

    def function(v, t):
        v["mean"].assign(0.5 * v["mean"].read_value() + tf.reduce_mean(t, case.axis))
        v["mean"].assign_add(tf.reduce_max(t, case.axis))
        v["last"].assign_sub(t)
        return [tf.square(v["mean"].read_value()), v["last"] * t]

    check_variables(case, values, function, **options)
