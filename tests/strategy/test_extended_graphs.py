"""`all_reduce` in graphs: within conditionals and loops, of changing shapes, traced again."""

import random
import subprocess
import sys

import harness
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.errors import CollectiveMismatchError

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def all_reduce(op, value):
    return tf.distribute.get_replica_context().all_reduce(op, value)


def test_what_python_draws_for_a_graph_is_one_constant_for_all_replicas(way_in_graph, values):
    strategy = harness.strategy(3)

    def replica():
        order = [1.0, 2.0, 3.0, 4.0]
        random.shuffle(order)
        return tf.constant([*order, np.random.random(), random.gauss(0.0, 1.0)])

    def seeded():
        random.seed(3)
        np.random.seed(3)

    seeded()
    one_device = replica().numpy()
    after = random.random(), np.random.random()
    seeded()
    out = way_in_graph(strategy, replica)
    np.testing.assert_array_equal(values(out), [one_device] * 3)
    assert (random.random(), np.random.random()) == after


def test_what_one_replica_draws_for_all_is_drawn_once(values):
    strategy = harness.strategy(3)
    made = []

    def replica():
        if not made:  # as a generator of seeds that replicas share
            made.append(random.random())
        return tf.constant(made[0]) + tf.constant(random.random())

    random.seed(3)
    one_device = random.random() + random.random()
    after = random.random()
    random.seed(3)
    out = tf.function(lambda: strategy.run(replica))()
    assert values(out)[0] == np.float32(one_device)
    assert random.random() == after


def test_all_reduce_within_a_conditional_that_every_replica_takes(way_in_graph, rank, values):
    strategy = harness.strategy(3)

    def replica(take):
        own = tf.constant(float(rank() + 1))
        return tf.cond(take, lambda: all_reduce(SUM, own) * 10.0, lambda: all_reduce(MEAN, own))

    for take, expected in ((True, 60.0), (False, 2.0)):
        out = way_in_graph(strategy, replica, tf.constant(take))
        np.testing.assert_array_equal(values(out), [expected] * 3)


@pytest.mark.slow
def test_all_reduce_within_a_loop_reduces_anew_in_every_round(way_in_graph, rank, values):
    strategy = harness.strategy(3)

    def replica(rounds):
        return tf.while_loop(
            lambda i, x: i < rounds,
            lambda i, x: (i + 1, all_reduce(MEAN, x) * 2.0 + float(rank())),
            (tf.constant(0), tf.constant(float(rank()))),
        )[1]

    for rounds in (1, 4):
        x = np.arange(3.0)
        for _ in range(rounds):
            x = np.full(3, x.mean()) * 2 + np.arange(3)
        out = way_in_graph(strategy, replica, tf.constant(rounds))
        np.testing.assert_allclose(values(out), x, rtol=1e-6)


@pytest.mark.slow
def test_the_gradient_passes_through_an_all_reduce_within_a_loop_and_a_conditional(rank, values):
    strategy = harness.strategy(2)

    @tf.function
    def step(take):
        def replica():
            x = tf.constant(float(rank() + 1))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.while_loop(
                    lambda i, y: i < 3,
                    lambda i, y: (
                        i + 1,
                        tf.cond(take, lambda: all_reduce(SUM, y), lambda: y * 2.0),
                    ),
                    (tf.constant(0), x),
                )[1]
            return y, tape.gradient(y, x)

        return strategy.run(replica)

    # Summed three times over two replicas: y = 4 (x0 + x1); all replicas' y count.
    y, gradient = step(tf.constant(True))
    np.testing.assert_allclose(values(y), [12, 12])
    np.testing.assert_allclose(values(gradient), [8, 8])
    y, gradient = step(tf.constant(False))
    np.testing.assert_allclose(values(y), [8, 16])
    np.testing.assert_allclose(values(gradient), [8, 8])


@pytest.mark.parametrize(
    ("declared", "shapes"),
    [
        ([None], [(3,), (5,), (1,), (3,), (0,)]),
        ([None], [(0,), (2,)]),
        ([None, 3], [(2, 3), (4, 3), (0, 3)]),
        ([2, None, None], [(2, 3, 4), (2, 4, 3), (2, 1, 12), (2, 0, 3)]),
        (None, [(3,), (2, 3), (3, 2), (), (1, 6), (0, 2)]),
    ],
    ids=str,
)
def test_all_reduce_of_a_shape_that_changes_from_call_to_call(declared, shapes, values):
    strategy = harness.strategy(3)

    @tf.function(input_signature=[tf.TensorSpec(declared, tf.float32)])
    def step(x):
        return strategy.run(lambda: all_reduce(SUM, [x, tf.ones([4]), x * 2.0]))

    for shape in shapes:
        x = np.full(shape, 1.5, "f4")
        once, constant, twice = step(tf.constant(x))
        for copies, expected in ((once, 3 * x), (constant, np.full(4, 3.0)), (twice, 6 * x)):
            for copy in values(copies):
                np.testing.assert_array_equal(copy, expected)


# How a step sums, and what its signature tells of the shape.
SHAPES_KNOWN_AS_IT_RUNS = {
    "alone": (lambda fn: fn(), [None]),
    "in a function": (lambda fn: tf.function(fn)(), [None, 3]),
    "of unknown rank": (lambda fn: tf.function(fn)(), None),
}


def sum_of_shapes_that_differ(case):
    """Asserts that the error names both replicas.

    It may cancel a collective that is under way, which aborts all later ones of the process.
    """
    around, declared = SHAPES_KNOWN_AS_IT_RUNS[case]
    strategy = harness.strategy(2)

    @tf.function(input_signature=[tf.TensorSpec(declared), tf.TensorSpec(declared)])
    def step(*of_replicas):
        def replica():
            context = tf.distribute.get_replica_context()
            own = of_replicas[tf.get_static_value(context.replica_id_in_sync_group)]
            return around(lambda: all_reduce(SUM, own))

        return strategy.run(replica)

    one, other = (tf.ones([rows, 3] if declared != [None] else [rows]) for rows in (2, 4))
    for total in step(one, one).values:
        np.testing.assert_array_equal(total, 2.0 * one.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"replica 0.*2.*replica 1.*4"):
        step(one, other)


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", tiers.first_of(*SHAPES_KNOWN_AS_IT_RUNS))
def test_shapes_that_differ_between_replicas_are_named_when_the_step_runs(case):
    lines = "import sys, lean; lean.import_keras(); import strategy.test_extended_graphs as tests"
    outcome = subprocess.run(
        [sys.executable, "-c", f"{lines}; tests.sum_of_shapes_that_differ(sys.argv[1])", case],
        cwd=tiers.TESTS,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_a_shape_that_one_replica_alone_knows_is_refused_while_tracing(rank):
    strategy = harness.strategy(2)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        return strategy.run(lambda: all_reduce(SUM, tf.ones([2]) if rank() else x))

    with pytest.raises(CollectiveMismatchError, match=r"\[None\].*replica 0.*\[2\].*replica 1"):
        step(tf.ones([2]))


@pytest.mark.slow
def test_all_reduce_of_slices_may_find_rows_on_some_replicas_or_on_none(rank, values):
    strategy = harness.strategy(3)

    @tf.function
    def step(rows_of_rank_1):
        def replica():
            rows = rows_of_rank_1 if rank() == 1 else tf.zeros_like(rows_of_rank_1)
            indices = tf.zeros([rows], tf.int32)
            return tf.convert_to_tensor(
                all_reduce(SUM, tf.IndexedSlices(tf.ones([rows, 2]), indices, [3, 2]))
            )

        return strategy.run(replica)

    for rows in (0, 2, 0, 3):
        for copy in values(step(tf.constant(rows))):
            np.testing.assert_array_equal(copy, [[rows, rows], [0, 0], [0, 0]])


@pytest.mark.slow
def test_replicas_may_loop_by_themselves_and_strategies_may_run_in_loops():
    strategy = harness.strategy(2)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([3]), aggregation=tf.VariableAggregation.SUM)

    def add():
        variable.assign_add(tf.ones([3]))

    def add_twice_in_a_function():
        function = tf.function(add)
        function()
        function()

    def step(outside, inside, body):
        def replica():
            for _ in tf.range(inside):
                body()

        for _ in tf.range(outside):
            strategy.run(replica)

    expected = 0.0
    for outside, inside, body, adds in (
        (1, 4, add, 4),
        (5, 1, add, 5),
        (3, 4, add, 12),
        (2, 3, add_twice_in_a_function, 12),
    ):
        tf.function(lambda o, i, body=body: step(o, i, body))(
            tf.constant(outside), tf.constant(inside)
        )
        expected += 2 * adds
        for copy in variable.values:
            np.testing.assert_array_equal(copy, [expected] * 3)


def test_a_step_that_is_traced_again_for_another_shape_still_communicates(values):
    strategy = harness.strategy(2)
    step = tf.function(lambda x: strategy.run(lambda: all_reduce(SUM, x)))
    for size in (2, 5, 2, 7, 5):
        np.testing.assert_array_equal(values(step(tf.ones([size]))), [[2.0] * size] * 2)
    assert step.experimental_get_tracing_count() == 3
