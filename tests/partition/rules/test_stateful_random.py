import functools

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy
from partition.drawn import of_drawn_batches
from partition.examples import length, of_any_axes

ROWS = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)
FEWER = ROWS[:2]  # than three replicas


def kinds(report):
    return [each.kind for each in report.exchanged]


GENERATED = {
    "normal": lambda generator, shape: generator.normal(shape),
    "uniform": lambda generator, shape: generator.uniform(shape),
    "integers": lambda generator, shape: generator.uniform(shape, -5, 99, tf.int64),
    "all integers": lambda generator, shape: generator.uniform_full_int(shape, tf.uint64),
    "truncated": lambda generator, shape: generator.truncated_normal(shape),
    "binomial": lambda generator, shape: generator.binomial(shape, 9.0, 0.4),
}


@pytest.mark.parametrize("batch", [ROWS, FEWER], ids=["uneven", "empty"])
@pytest.mark.parametrize("draw", GENERATED.values(), ids=GENERATED)
def test_every_replica_advances_its_copy_of_a_generator(draw, batch):
    generator = tf.random.Generator.from_seed(3)

    def function(x):
        generator.reset_from_seed(4)
        first = draw(generator, [length(x), 20])
        generator.skip(11)
        return first, draw(generator, [length(x), 3]), generator.state.read_value()

    report = check(function, batch, replicas=(3,), exact=True)
    assert not report.exchanged


STATEFUL = {
    "StatefulStandardNormalV2": {},
    "StatefulTruncatedNormal": {},
    "StatefulUniform": {},
    "StatefulUniformFullInt": {"dtype": tf.int64},
    "StatefulUniformInt": {"minval": tf.constant(2, tf.int64), "maxval": tf.constant(99, tf.int64)},
}


@pytest.mark.parametrize("type_", STATEFUL)
def test_draws_from_a_variable_advance_every_copy(type_):
    state = tf.Variable([1, 2, 3], dtype=tf.int64)
    draw = getattr(tf.raw_ops, type_)

    def function(x):
        state.assign([1, 2, 3])
        options = {"resource": state.handle, "algorithm": tf.constant(1, tf.int64)}
        shape = tf.cast([length(x), 5], tf.int64)
        numbers = draw(**options, shape=shape, **STATEFUL[type_])
        return numbers, state.read_value()

    report = check(function, ROWS, exact=True)
    assert not report.exchanged


def test_a_generator_whose_state_is_shared_out_is_refused():
    with strategy(2).scope():
        state = tf.Variable(
            [0, 0, 0],
            dtype=tf.int64,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @strategy(2).partitioned
    def function(x):
        drawn = tf.raw_ops.RngReadAndSkip(
            resource=state.handle, alg=tf.constant(1), delta=tf.constant(1, tf.uint64)
        )
        return drawn + tf.cast(length(x), tf.int64)

    with pytest.raises(ValueError, match=r"RngReadAndSkip .* cannot: each replica has a share"):
        function(ROWS)


HIDDEN = {
    "uniform": lambda x: tf.random.uniform([length(x), 3], seed=5),
    "normal": lambda x: tf.random.normal([4, length(x)], seed=5),
    "truncated": lambda x: tf.random.truncated_normal([length(x)], seed=5),
    "integers": lambda x: tf.random.uniform([length(x), 3], -4, 99, tf.int32, seed=5),
    "parameterized": lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=[length(x)], means=0.5, stdevs=2.0, minvals=-1.0, maxvals=1.0, seed=5, seed2=9
    ),
    "of no batch": lambda x: tf.random.uniform([3, 2], seed=5),
    "gamma": lambda x: tf.random.gamma([length(x), 2], [1.0, 3.0], seed=5),
    "Poisson": lambda x: tf.random.poisson([length(x)], [1.0, 30.0], seed=5),
}


@pytest.mark.parametrize("draw", HIDDEN.values(), ids=HIDDEN)
def test_the_first_replica_draws_from_a_hidden_state(draw):
    tf.random.set_seed(1)
    report = check(draw, ROWS, exact=True)
    assert kinds(report) == ["from first"]


def test_a_hidden_state_goes_on_from_call_to_call():
    tf.random.set_seed(1)

    def function(x):
        return tf.random.uniform([length(x), 3], seed=5)

    one, three = tf.function(function), strategy(3).partitioned(function)
    drawn = [(one(tf.constant(ROWS)), three(ROWS)) for _ in range(3)]
    for expected, found in drawn:
        np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(drawn[0][0], drawn[1][0])


BY_ROW = {
    "shuffle": lambda x: tf.random.shuffle(x, seed=5),
    "Poisson": lambda x: tf.random.poisson([3], x, seed=5),
    "gamma": lambda x: tf.random.gamma([], x + 1, seed=5),
    "categories": lambda x: tf.random.categorical(x, 5, seed=5),
    "categories by columns": lambda x: tf.random.categorical(tf.transpose(x), 9, seed=5),
    "Poisson by columns": lambda x: tf.random.poisson([3], tf.transpose(x), seed=5),
    "gamma by columns": lambda x: tf.random.gamma([], tf.transpose(x) + 1, seed=5),
    "Poisson of any number of axes": lambda x: tf.random.poisson([3], of_any_axes(x), seed=5),
    "categories of any number of axes": lambda x: tf.random.categorical(of_any_axes(x), 5, seed=5),
}


@pytest.mark.parametrize("batch", [ROWS, FEWER], ids=["uneven", "empty"])
@pytest.mark.parametrize("draw", BY_ROW.values(), ids=BY_ROW)
def test_the_first_replica_draws_for_each_row(draw, batch):
    tf.random.set_seed(1)
    report = check(draw, batch, replicas=(3,), exact=True)
    assert kinds(report) == ["gather", "from first"]


def test_candidates_are_the_same_for_all():
    tf.random.set_seed(1)

    def function(classes):
        return tuple(tf.random.log_uniform_candidate_sampler(classes, 2, 5, True, 50, seed=5))

    classes = np.arange(14, dtype=np.int64).reshape(7, 2)
    report = check(function, classes, exact=True)
    assert kinds(report) == ["gather", "from first"]
    report = check(lambda classes: function(of_any_axes(classes)), classes, exact=True)
    assert kinds(report) == ["gather", "from first"]


@of_drawn_batches
def test_a_generator_draws_any_shape_as_on_one_device(case):
    generator = tf.random.Generator.from_seed(3)
    draws = [case.choose([*GENERATED.values()]) for _ in range(4)]
    columns = case.choose([[20], [], [3]])
    steps = case.choose([11, 0, 1])

    def function(t):
        number = tf.shape(t)[case.axis]
        shape = tf.concat([tf.shape(t), columns], 0)
        generator.reset_from_seed(4)
        found = [draws[0](generator, shape), draws[1](generator, [2, number, *columns])]
        generator.skip(steps)
        found.append(draws[2](generator, [3, 2]))
        generator.skip(tf.cast(number, tf.int64))
        generator.skip(tf.cast(tf.reduce_sum(t), tf.int64))
        found += [draws[3](generator, tf.shape(t)) + draws[3](generator, [])]
        scaled = t * generator.normal(tf.shape(t)) + generator.normal(tf.shape(t), t, 2.0)
        found.append(generator.binomial(tf.shape(t), tf.cumsum(t, case.axis), 0.5))
        found.append(generator.binomial(tf.shape(t), t, 0.5))
        split = generator.make_seeds(2)
        return found, scaled, split, generator.state.read_value()

    case.check(function)  # products and sums may be fused, which rounds once


def of_shapes(seed, columns):
    """Draws from a hidden state, of the shapes of a tensor, its rows and all its examples."""

    def shape(t):
        return tf.concat([tf.shape(t), columns], 0)

    return [
        lambda t, rows, whole: tf.random.shuffle(t, seed=seed),
        lambda t, rows, whole: tf.random.poisson([2], t, seed=seed),
        lambda t, rows, whole: tf.random.uniform(shape(t), seed=seed),
        lambda t, rows, whole: tf.random.normal([2, length(rows), *columns], seed=seed),
        lambda t, rows, whole: tf.random.categorical(rows / 5, 4, seed=seed),
        lambda t, rows, whole: tf.random.truncated_normal([length(rows)] * 2, seed=seed),
        lambda t, rows, whole: tf.random.uniform(shape(t), -4, 99, tf.int32, seed=seed),
        lambda t, rows, whole: tf.random.gamma([length(rows), 2], [1.0, 3.0], seed=seed),
        lambda t, rows, whole: tf.random.gamma([], t, seed=seed),
        lambda t, rows, whole: tf.random.poisson(shape(t), [1.0, 30.0], seed=seed),
        lambda t, rows, whole: tf.random.poisson([3, 1], whole, seed=seed),
        lambda t, rows, whole: tf.random.poisson([length(rows)], t, seed=seed),
        lambda t, rows, whole: (
            tf.random.categorical(whole[..., None] / 5, 4, seed=seed)
            if whole.shape.rank == 1
            else tf.random.shuffle(whole, seed=seed)
        ),
        lambda t, rows, whole: tf.raw_ops.ParameterizedTruncatedNormal(
            shape=[length(rows), *columns],
            means=tf.reduce_max(t),
            stdevs=2.0,
            minvals=-1.0,
            maxvals=50.0,
            seed=seed,
        ),
    ]


@of_drawn_batches
def test_a_hidden_state_draws_any_shape_as_on_one_device(case):
    tf.random.set_seed(1)
    draws = of_shapes(case.choose([5, 1, 9]), case.choose([[20], [], [3]]))
    chosen = [case.choose(draws) for _ in range(5)]

    def function(t):
        rows, whole = tf.reshape(t, [-1, tf.shape(t)[-1]]), tf.cumsum(t, case.axis)
        found = [draw(t, rows, whole) for draw in chosen]
        return found, t * tf.random.uniform(tf.shape(t), seed=3)

    case.check(function, exact=True)


@of_drawn_batches
def test_candidates_of_any_classes_are_those_of_one_device(case):
    tf.random.set_seed(1)
    number = case.choose([5, 1, 12])
    unique = case.choose([True, False])
    samplers = [
        tf.random.uniform_candidate_sampler,
        tf.random.log_uniform_candidate_sampler,
        tf.random.learned_unigram_candidate_sampler,
        functools.partial(tf.random.fixed_unigram_candidate_sampler, unigrams=[*range(1, 61)]),
    ]
    chosen = [case.choose(samplers) for _ in range(2)]

    def function(t):
        found = []
        width = case.shape[-1]
        for classes in (t, tf.cumsum(t, case.axis) % 50):
            classes = tf.cast(tf.reshape(classes, [-1, width]), tf.int64)
            options = {"num_true": width, "num_sampled": number, "unique": unique, "seed": 5}
            found += [sampler(classes, range_max=60, **options) for sampler in chosen]
        return [tuple(each) for each in found]

    case.check(function, exact=True)
