import functools

import numpy as np
import pytest
import tensorflow as tf
from partition.check import REPLICAS, check
from partition.drawn import of_drawn_batches
from partition.examples import length
from partition.samples import sample

from tfdp.partition import REPLICATED, Batch, Sharded, partition
from tfdp.partition.rules import random as rules

SEED = [5, -3]
UNEVEN = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)
FEWER = UNEVEN[:2]  # than three replicas


@pytest.fixture
def own_rows(monkeypatch):
    """The draws of which replicas make their own rows alone."""
    found = []

    def noted(step, *args, **options):
        found.append(step.op.type)
        return wrapped(step, *args, **options)

    wrapped = rules.own_rows
    monkeypatch.setattr(rules, "own_rows", noted)
    return found


def drawn(function, batch=UNEVEN, **options):
    """Compares a draw of the length of a batch, and returns the report."""
    return check(lambda x: function(length(x)), batch, exact=True, **options)


IN_ORDER = {
    "uniform": tf.random.stateless_uniform,
    "uniform of doubles": functools.partial(tf.random.stateless_uniform, dtype=tf.float64),
    "uniform of halves": functools.partial(tf.random.stateless_uniform, dtype=tf.float16),
    "normal": tf.random.stateless_normal,
    "normal of doubles": functools.partial(tf.random.stateless_normal, dtype=tf.float64),
    "normal of brain floats": functools.partial(tf.random.stateless_normal, dtype=tf.bfloat16),
    "integers": functools.partial(
        tf.random.stateless_uniform, minval=-9, maxval=10**6, dtype=tf.int32
    ),
    "long integers": functools.partial(
        tf.random.stateless_uniform, minval=-9, maxval=10**12, dtype=tf.int64
    ),
    "all integers": functools.partial(
        tf.random.stateless_uniform, minval=None, maxval=None, dtype=tf.uint32
    ),
    "all long integers": functools.partial(
        tf.random.stateless_uniform, minval=None, maxval=None, dtype=tf.uint64
    ),
    "Philox, by its name": functools.partial(tf.random.stateless_normal, alg="philox"),
    "the first version of uniform": lambda shape, seed: tf.raw_ops.StatelessRandomUniform(
        shape=shape, seed=seed, dtype=tf.float32
    ),
    "the first version of normal": lambda shape, seed: tf.raw_ops.StatelessRandomNormal(
        shape=shape, seed=tf.cast(seed, tf.int64), dtype=tf.float64
    ),
    "the first version of integers": lambda shape, seed: tf.raw_ops.StatelessRandomUniformInt(
        shape=shape, seed=seed, minval=tf.constant(3), maxval=tf.constant(777)
    ),
    "the first version of all integers": lambda shape, seed: (
        tf.raw_ops.StatelessRandomUniformFullInt(shape=shape, seed=seed, dtype=tf.int64)
    ),
}


@pytest.mark.parametrize("row", [(4, 5), (3, 7)], ids=["groups", "parts of groups"])
@pytest.mark.parametrize("draw", IN_ORDER.values(), ids=IN_ORDER)
def test_each_replica_draws_the_numbers_of_its_own_examples(draw, row, own_rows):
    report = drawn(lambda length: draw([length, *row], SEED), replicas=(3,))
    assert len(own_rows) == 1 and not report.exchanged


@pytest.mark.parametrize("row", [(4, 5), (3, 7)], ids=["groups", "parts of groups"])
def test_a_replica_without_examples_draws_for_none(row, own_rows):
    drawn(lambda length: tf.random.stateless_normal([length, *row], SEED), FEWER, replicas=(2, 3))
    assert len(own_rows) == 2


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=str)
def test_the_lengths_of_rows_may_be_known_only_when_the_step_runs(dtype, own_rows):
    texts = tf.Variable([3, 9, 3, 4, 8])

    def function(x):
        steps = tf.shape(tf.unique(texts)[0], dtype)[0]  # a symbol
        half = (steps + tf.cast(length(x), dtype)) // 2  # nothing is known of it
        shape = [tf.shape(x, dtype)[0], steps, half]
        return tf.random.stateless_normal(shape, SEED)

    check(function, UNEVEN, exact=True)
    assert len(own_rows) == len(REPLICAS)


def test_an_axis_may_have_several_entries_for_each_example(own_rows):
    report = drawn(lambda length: tf.random.stateless_uniform([3 * length, 7], SEED))
    assert len(own_rows) == len(REPLICAS) and not report.exchanged


def test_numbers_go_on_where_the_first_word_of_the_counter_wraps_around(own_rows):
    def function(length):
        return tf.raw_ops.StatelessRandomUniformV2(
            shape=[length, 20],
            key=tf.constant([3], tf.uint64),
            counter=tf.constant([2**64 - 12, 2**64 - 1], tf.uint64),
            alg=1,
        )

    drawn(function)
    assert own_rows


@sample(np.arange(7 * 20, dtype=np.float32).reshape(7, 20), exact=True, sends=[])
def test_numbers_that_flow_on_stay_cut(x):
    kept = tf.random.stateless_uniform(tf.shape(x), SEED) > 0.25
    return tf.where(kept, x, 0)


WHOLE = {
    "another axis": lambda length: tf.random.stateless_uniform([5, length, 3], SEED),
    "few numbers": lambda length: tf.random.stateless_uniform([length, 3], SEED),
    "two axes": lambda length: tf.random.stateless_uniform([length, length], SEED),
    "no batch": lambda length: tf.random.stateless_uniform([7, 20], SEED),
    "no axis": lambda length: tf.random.stateless_uniform([], SEED),
    "truncated": lambda length: tf.random.stateless_truncated_normal([length, 20], SEED),
    "truncated, the first version": lambda length: tf.raw_ops.StatelessTruncatedNormal(
        shape=[length, 20], seed=SEED
    ),
    "gamma": lambda length: tf.random.stateless_gamma([length, 3], SEED, [1.0, 2.0, 3.5]),
    "gamma, by seed": lambda length: tf.raw_ops.StatelessRandomGammaV2(
        shape=[length, 3], seed=SEED, alpha=[1.0, 2.0, 3.5]
    ),
    "binomial": lambda length: tf.random.stateless_binomial([length, 2], SEED, [9.0, 5.0], 0.4),
    "Poisson": lambda length: tf.random.stateless_poisson([length, 2], SEED, [9.0, 0.5]),
    "parameterized": lambda length: tf.random.stateless_parameterized_truncated_normal(
        [length, 2], SEED, means=0.5
    ),
    "an unknown generator": lambda length: tf.raw_ops.StatelessRandomUniformV2(
        shape=[length, 20],
        key=tf.constant([3], tf.uint64),
        counter=tf.constant([4, 5], tf.uint64),
        alg=tf.raw_ops.StatelessRandomGetAlg(),
    ),
}


@pytest.mark.parametrize("draw", WHOLE.values(), ids=WHOLE)
def test_each_replica_draws_all_and_keeps_its_own(draw, own_rows):
    report = drawn(draw)
    assert not own_rows and not report.exchanged


@pytest.mark.parametrize("name", ["uniform", "the first version of uniform"])
def test_where_another_generator_than_philox_is_selected_each_replica_draws_all(
    name, own_rows, monkeypatch
):
    monkeypatch.setattr(rules, "is_philox", lambda algorithm: False)
    report = drawn(lambda length: IN_ORDER[name]([length, 20], SEED), replicas=(3,))
    assert not own_rows and not report.exchanged


@pytest.mark.parametrize("name", ["another axis", "few numbers", "truncated"])
def test_a_replica_without_examples_keeps_none(name):
    drawn(WHOLE[name], FEWER)


def test_parameters_of_the_examples_are_gathered():
    rates = np.linspace(0.5, 90, 7, dtype=np.float32)

    def function(rates):
        shape = [3, tf.size(rates)]
        return tf.random.stateless_poisson(shape, SEED, rates)

    report = check(function, rates, exact=True, whole=["StatelessRandomPoisson"])
    assert [each.kind for each in report.exchanged] == ["gather"]


@sample(UNEVEN, exact=True)
def test_seeds_may_come_from_the_batch(x):
    seed = tf.cast(tf.stack([tf.reduce_sum(x), 3]), tf.int32)
    return tf.random.stateless_normal(tf.concat([tf.shape(x)[:1], [20]], 0), seed)


@sample(UNEVEN / 20, exact=True, whole=["StatelessMultinomial"])
def test_categories_of_logits_keep_their_rows(logits):
    return tf.random.stateless_categorical(logits, 6, SEED) + tf.zeros_like(logits, tf.int64)[:, :1]


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
def test_categories_that_are_examples_are_drawn_whole(batch, layouts):
    def function(logits):
        return tf.random.stateless_categorical(tf.transpose(logits), 9, SEED)

    check(function, batch / 20, replicas=(3,), exact=True, whole=["StatelessMultinomial"])
    assert layouts["StatelessMultinomial"] == {"replicated"}


@sample(np.arange(7), replicas=(3,), sends=[])
def test_shuffled_indices_stay_cut(index):
    seeds = tf.stack([index, index + 1, index * 3], 1)
    shuffle = functools.partial(tf.raw_ops.RandomIndexShuffle, index=index)
    largest = tf.constant(6, tf.int64)
    one = shuffle(seed=tf.constant([1, 2, 3]), max_index=largest)
    return one, shuffle(seed=seeds, max_index=largest), shuffle(seed=seeds, max_index=index + 1)


@sample(UNEVEN + 0.5, sends=[])
def test_the_derivative_of_a_gamma_draw_stays_cut(alpha):
    return tf.raw_ops.RandomGammaGrad(alpha=alpha, sample=alpha * 0.7)


def test_one_replica_draws_all():
    drawn(lambda length: tf.random.stateless_uniform([length, 20], SEED), replicas=(1,))


class Two:
    """What a program without collectives asks of a communicator."""

    num_replicas = local_size = 2
    bucket_bytes = 0
    keeps_partials = False
    partials_by_rows = False


@pytest.mark.parametrize(("length", "is_cut"), [(7, True), (14, False)])
def test_a_fixed_length_of_the_batch_is_one_of_a_draw(length, is_cut):
    def function(x):
        return tf.random.stateless_uniform([length, 20], SEED), x

    graph = tf.function(function).get_concrete_function(tf.TensorSpec([7, 20])).graph
    batch = Sharded(0, Batch("fixed", 7))
    program = partition(graph, [batch], [], Two(), may_be_empty=False, keep_rows=True)
    assert program.outputs == [batch if is_cut else REPLICATED, batch]


@sample(UNEVEN, exact=True, whole=["AddV2"])
def test_a_number_that_happens_to_be_the_length_is_no_batch(x):
    return tf.random.stateless_uniform([7, 4], SEED) + x


@of_drawn_batches
def test_draws_of_any_shape_are_the_numbers_of_one_device_wherever_the_batch_is(case):
    columns = case.choose([[20], [], [7], [4, 5], [1, 17], [0]])
    ahead = case.choose([[], [1], [2]])
    counts = case.choose([tf.int32, tf.int64])
    draws = [case.choose([*IN_ORDER.values()]) for _ in range(4)]

    def function(t):
        shape = tf.concat([ahead, tf.shape(t, counts), columns], 0)
        number = tf.shape(t, counts)[case.axis]
        each = tf.ones_like(tf.reduce_sum(t, case.others))
        found = [draw(shape, SEED) for draw in draws]
        found += [draw([number, 3, *columns], SEED) for draw in draws[:2]]
        found += [draw([2 * number, *columns, 8], SEED) for draw in draws[:2]]
        found += [
            tf.random.stateless_normal([number, number], SEED),
            tf.random.stateless_truncated_normal(shape, SEED),
            tf.random.stateless_binomial(shape, SEED, 9.0, 0.4),
            tf.random.stateless_uniform(tf.shape(tf.concat([t, t], case.axis)), SEED),
            tf.random.stateless_uniform(tf.reverse(tf.shape(t), [0]), SEED),
            tf.random.stateless_uniform([tf.size(t)], SEED),
            tf.random.stateless_uniform([tf.size(t) * 20], SEED),
        ]
        own = tf.random.stateless_uniform([number, 20], SEED) + each[:, None]
        return [*found, own, tf.where(tf.random.stateless_uniform(tf.shape(t), SEED) > 0.5, t, 0)]

    case.check(function, exact=True)


@of_drawn_batches
def test_draws_from_what_the_batch_gives_are_those_of_one_device(case):
    kinds = case.choose([tf.int32, tf.int64])

    def function(t):
        whole, last = tf.cumsum(t, case.axis), tf.shape(t)[-1:]
        rows = tf.reshape(t, [-1, last[0]])
        ahead = tf.concat([[2], tf.shape(t)], 0)
        seed = tf.cast(tf.stack([tf.reduce_sum(t), tf.reduce_max(t)]), kinds)
        index = tf.cast(tf.reshape(t, [-1]), kinds)
        seeds = tf.stack([index, index + 1, index * 3], 1)
        all_seeds = tf.cumsum(seeds)
        shuffled = functools.partial(tf.raw_ops.RandomIndexShuffle, index=index)
        most = tf.constant(24, kinds)
        found = [
            tf.random.stateless_poisson(ahead, seed, t),
            tf.random.stateless_gamma(tf.shape(t), seed, whole),
            tf.random.stateless_gamma(ahead, SEED, t),
            tf.random.stateless_normal(tf.concat([tf.shape(t), [17]], 0), seed),
            tf.random.stateless_categorical(rows / 5, 4, seed),
            tf.random.stateless_categorical(tf.reshape(whole, [-1, last[0]]) / 5, 4, SEED),
            tf.random.experimental.stateless_shuffle(t, seed),
            tf.random.experimental.stateless_shuffle(whole, SEED),
            shuffled(seed=[1, 2, 3], max_index=most),
            shuffled(seed=seeds, max_index=most),
            shuffled(seed=all_seeds, max_index=index + 1),
            shuffled(seed=seeds, max_index=tf.cumsum(index)),
            tf.raw_ops.RandomIndexShuffle(
                index=tf.cumsum(index), seed=seeds, max_index=tf.cumsum(index)
            ),
        ]
        derivatives = [
            tf.raw_ops.RandomGammaGrad(alpha=a, sample=b * 0.7)
            for a, b in ((t, t), (t, whole), (whole, t), (t[..., None], tf.constant([1.0, 2.0])))
        ]
        return found, derivatives

    case.check(function)
