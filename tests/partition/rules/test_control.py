import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, strategy
from partition.drawn import of_drawn_batches
from partition.samples import sample

import tfdp  # noqa: F401 - the strategy's package


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


SIZES = [7, 2]
in_sizes = pytest.mark.parametrize("size", SIZES)


@in_sizes
def test_a_branch_keeps_the_cut(size):
    def function(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(x), lambda: x * 2)

    for sign in (1, -1):
        check(function, sign * np.abs(rows(size)))


@in_sizes
def test_branches_of_other_layouts_meet(size):
    def function(x, flag):
        total = tf.cond(flag, lambda: tf.reduce_sum(x, 0), lambda: tf.ones([3]))
        mixed = tf.cond(flag, lambda: x, lambda: tf.zeros_like(x) + tf.reduce_mean(x, 0))
        return total * 2, mixed

    for flag in (True, False):
        check(function, rows(size), np.array(flag))


@pytest.mark.parametrize("flag", [True, False])
def test_branches_of_other_shapes_are_whole(flag):
    def function(x, flag):
        turned = tf.transpose(x)  # [3, batch]
        length = tf.shape(x)[0]
        numbers = tf.raw_ops.LinSpace(start=0.0, stop=1.0, num=length * 5)  # on every replica
        return (
            tf.cond(flag, lambda: x, lambda: tf.ones([3])),
            tf.cond(flag, lambda: x, lambda: tf.ones([5, 3])),
            tf.cond(flag, lambda: turned, lambda: tf.reshape(numbers, [length, 5])),
        )

    check(function, rows(7), np.array(flag), whole={"StatelessIf"})


@pytest.mark.parametrize("flag", [True, False])
def test_sizes_that_branches_give_are_those_of_the_branch_that_is_taken(flag):
    def function(x, flag):
        sizes = tf.cond(flag, lambda: tf.shape(x), lambda: tf.shape(x) * 2)
        few = tf.cond(flag, lambda: tf.constant([3, 3]), lambda: tf.constant([3]))
        return -tf.fill(sizes, 2.0), -tf.fill([tf.size(few) * tf.shape(x)[0]], 3.0)

    check(function, rows(7), np.array(flag))


@sample(rows)
def test_sizes_that_a_loop_carries_are_those_of_the_round(x):
    turned = tf.transpose(x)

    def body(length, y, total):
        total += tf.reduce_sum(-tf.ones([length, 2])) * tf.cast(tf.shape(y)[0], tf.float32)
        return length * 2, turned - y, total

    return tf.while_loop(lambda length, *_: length < 50, body, [tf.shape(x)[0], turned * 2, 0.0])


def test_a_sum_that_one_branch_needs_is_sent_in_that_branch():
    def function(x, flag):
        return tf.cond(flag, lambda: tf.sqrt(tf.reduce_sum(x * x)), lambda: 1.0)

    report = check(function, rows(7), np.array(True))
    assert [(each.kind, "branch" in each.function) for each in report.exchanged] == [("sum", True)]


@in_sizes
def test_a_case_chooses_among_several(size):
    def function(x, index):
        return tf.switch_case(index, [lambda: x, lambda: x * x, lambda: x - tf.reduce_mean(x, 0)])

    for index in range(3):
        check(function, rows(size), np.int32(index))


@sample(rows)
def test_a_loop_keeps_the_cut_of_what_it_carries(x):
    return tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y) + x), [0, tf.zeros_like(x)]
    )


@in_sizes
def test_what_a_loop_sums_stays_a_summand_until_after_it(size):
    def function(x):
        def body(i, total):
            return i + 1, total + tf.reduce_sum(x * tf.cast(i, tf.float32), 0)

        return tf.while_loop(lambda i, _: i < 4, body, [0, tf.zeros([3])])[1]

    report = check(function, rows(size))
    assert len(report.exchanged) == 1


@in_sizes
def test_what_a_loops_condition_sends_is_of_one_round_at_a_time(size):
    def goes_on(i, y):  # does not need what it asserts
        tf.debugging.assert_less(tf.reduce_sum(y), 1e9)
        return i < 30

    check(
        lambda x: tf.while_loop(goes_on, lambda i, y: (i + 1, tf.tanh(y) + x), (0, x)), rows(size)
    )


# More entries than a rule makes a summand of without a reason.
WIDE = 40


def product(x, i=0):
    """A summand of [WIDE, WIDE] where the batch is cut."""
    return tf.matmul(x, x, transpose_a=True) * tf.cast(i + 1, tf.float32)


def looped(body, *start, rounds=4):
    step = lambda i, *state: (i + 1, *body(i, *state))  # noqa: E731
    return tf.while_loop(lambda i, *_: i < rounds, step, [0, *start])[1:]


def kept_in_a_list(x):
    ones = tf.TensorArray(tf.float32, 3, element_shape=[WIDE, WIDE], clear_after_read=False)
    ones = ones.unstack(tf.ones([3, WIDE, WIDE]))
    write = lambda i, kept: [kept.write(i, kept.read(i) + product(x, i))]  # noqa: E731
    return looped(write, ones, rounds=2)[0].stack()


def gradients_of_micro_batches(x):
    w = square() / 9

    def body(i, total, losses):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean(tf.tanh(x @ w) * tf.cast(i, tf.float32))
        return total + tape.gradient(loss, w), losses + loss

    return looped(body, tf.zeros_like(w), 0.0)


def gradient_of_a_loop_in_a_loop(x):
    w = square() / 9
    with tf.GradientTape() as tape:
        tape.watch(w)
        inner = lambda _, h: looped(lambda _, h: [tf.tanh(h @ w)], h, rounds=2)  # noqa: E731
        loss = tf.reduce_mean(looped(inner, x, rounds=3)[0] ** 2)
    return loss, tape.gradient(loss, w)


def square():
    return tf.reshape(tf.cos(tf.range(WIDE * WIDE, dtype=tf.float32)), [WIDE, WIDE])


def nested(x):
    add = lambda i, total: [total + product(x, i)]  # noqa: E731
    return looped(lambda _, total: looped(add, 0.5 * total), square(), rounds=3)


def of_doubles(total, x):
    return tf.cast(tf.cast(total, tf.float64) + tf.cast(product(x), tf.float64), tf.float32)


def counted(x):
    return tf.reduce_sum(tf.cast(x[:, None] > x[:, :, None], tf.int32), 0)


def scattered(total, x):
    return tf.tensor_scatter_nd_add(total, tf.argmax(x, 1)[:, None], x)


# What loops only add summands to, in one way or another.
ADDED = {
    "gradients of micro-batches": gradients_of_micro_batches,
    "the gradient of a loop in a loop": gradient_of_a_loop_in_a_loop,
    "in a list": kept_in_a_list,
    "in a branch": lambda x: looped(
        lambda i, t: [tf.cond(i < 2, lambda: t + product(x, i), lambda: t)], square()
    ),
    "where a condition says": lambda x: looped(
        lambda i, t: [tf.where(tf.equal(i % 2, 0), t + product(x, i), t)], square()
    ),
    "in a loop in a loop": nested,
    "by a rate that the loop changes": lambda x: looped(
        lambda i, t, rate: [rate * t + product(x, i), rate * 0.5], square(), 1.0
    ),
    "to another of its sums": lambda x: looped(
        lambda i, t, u: [t + product(x, i), u + t], square(), square()
    ),
    "to the other": lambda x: looped(lambda i, t, u: [u, t - product(x, i)], square(), square()),
    "multiplied": lambda x: looped(lambda i, t: [square() @ t + product(x, i)], square()),
    "in double precision": lambda x: looped(lambda _, t: [of_doubles(t, x)], square()),
    "whole numbers": lambda x: looped(
        lambda _, t: [t + counted(x)], tf.ones([WIDE, WIDE], tf.int32)
    ),
    "by indices": lambda x: looped(lambda _, t: [scattered(t, x)], square()),
    "to a part of it": lambda x: looped(
        lambda i, t: [tf.concat([t[:9], t[9:] + product(x, i)[9:]], 0)], square()
    ),
    "in no round": lambda x: looped(lambda i, t: [t + product(x, i)], square(), rounds=0),
    "until the batch agrees": lambda x: tf.while_loop(
        lambda r, _: r < 8.5 * tf.reduce_sum(x * x),
        lambda r, t: (r + tf.reduce_sum(x * x), t + product(x)),
        [0.0, square()],
    )[1],
}
KEPT = ("the gradient of a loop in a loop", "in a list", "in a branch", "to another of its sums")


@pytest.mark.parametrize("name", tiers.cases(ADDED, KEPT))
def test_what_a_loop_only_adds_summands_to_is_summed_once_after_it(name):
    report = check(ADDED[name], rows(2, WIDE))  # one of three replicas has no example
    (only,) = [each for each in report.exchanged if each.size_bytes >= 4 * WIDE**2]
    assert not only.function.startswith(("loop", "branch"))


def trained_in_rounds(x):
    def body(_, w, velocity):
        velocity = 0.9 * velocity + tf.matmul(x, tf.tanh(x @ w), transpose_a=True) / 9
        return w - 0.1 * velocity, velocity

    return looped(body, square() / 9, tf.zeros([WIDE, WIDE]))


# What a round needs the sum of.
NEEDED = {
    "it is read": lambda x: looped(
        lambda _, t: [t + tf.matmul(x, tf.tanh(x @ t), transpose_a=True) / 9], square() / 9
    ),
    "it is clipped": lambda x: looped(
        lambda i, t: [tf.clip_by_value(t + product(x, i), -3, 3)], square()
    ),
    "its norm is": lambda x: looped(lambda i, t, _: [t + product(x, i), tf.norm(t)], square(), 0.0),
    "the condition reads it": lambda x: tf.while_loop(
        lambda t: tf.norm(t) < 500, lambda t: [t + product(x)], [square()]
    ),
    "weights and their velocities": trained_in_rounds,
}


@pytest.mark.parametrize("name", tiers.first_of(*NEEDED))
def test_what_each_round_needs_the_sum_of_is_summed_once_in_each(name):
    report = check(NEEDED[name], rows(7, WIDE))
    (only,) = report.exchanged
    assert only.function.startswith("loop") and only.tensors == 1


@sample(rows)
def test_a_loop_may_need_sums_in_each_round(x):
    def body(i, y):
        return i + 1, y / (1.0 + tf.abs(tf.reduce_mean(y, 0)))

    return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]


def test_what_a_loop_leaves_as_it_is_is_gathered_once_and_before_it():
    def function(x):
        def body(i, total):
            return i + 1, total + tf.reduce_sum(tf.reverse(x, [0])[0])

        return tf.while_loop(lambda i, _: i < 3, body, [0, 0.0])[1]

    report = check(function, rows(7), whole=None)
    (gather,) = [each for each in report.exchanged if each.kind == "gather"]
    assert not gather.function.startswith("loop")


@sample(rows)
def test_a_loop_ends_by_a_condition_on_the_batch(x):
    return tf.while_loop(lambda y: tf.reduce_max(y) < 50.0, lambda y: [y * 1.5 + 1.0], [x])[0]


@sample(rows, lambda size: rows(3, 3)[None], whole=None)
def test_the_gradient_of_a_loop_and_of_a_branch_is_one_devices(x, w):
    w = w[0]
    with tf.GradientTape() as tape:
        tape.watch(w)

        def body(i, y):
            y = tf.cond(tf.reduce_mean(y) > 0, lambda: tf.tanh(y @ w), lambda: y @ w)
            return i + 1, y

        y = tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]
        loss = tf.reduce_mean(y * y)
    return loss, tape.gradient(loss, w)


@sample(rows)
def test_tensor_arrays_hold_parts_of_batches(x):
    array = tf.TensorArray(tf.float32, 4)
    for index in range(4):
        array = array.write(index, x * (index + 1.0))
    return array.stack(), array.read(2), array.size()


@sample(rows)
def test_steps_of_sequences_are_written_in_a_loop(x):
    steps = tf.TensorArray(tf.float32, tf.shape(x)[1]).unstack(tf.transpose(x))

    def body(i, found):
        return i + 1, found.write(i, tf.cumsum(steps.read(i)[:, None] * tf.ones([1, 2]), 1))

    found = tf.TensorArray(tf.float32, tf.shape(x)[1])
    return tf.while_loop(lambda i, _: i < tf.shape(x)[1], body, [0, found])[1].stack()


@sample(rows, whole=None)
def test_elements_are_joined_along_the_batch(x):
    array = tf.TensorArray(tf.float32, 2, infer_shape=False)
    return array.write(0, x).write(1, -x).concat()


@in_sizes
def test_elements_that_are_cut_along_another_axis_are_joined_as_they_are(size):
    def function(x):
        array = tf.TensorArray(tf.float32, 2, infer_shape=False)
        numbers = tf.raw_ops.LinSpace(start=0.0, stop=1.0, num=tf.shape(x)[0])  # on every replica
        whole = tf.stack([numbers, numbers * 2, numbers * 3])
        return array.write(0, tf.transpose(x)).write(1, whole).concat()

    report = check(function, rows(size))
    assert not [each for each in report.exchanged if each.why != "it is returned"]


def test_elements_are_put_and_taken_where_the_batch_says():
    def function(x, places, marks):
        place = tf.reduce_sum(marks)  # 2, though each replica has less
        array = tf.raw_ops.TensorListScatterV2(
            tensor=x, indices=places, element_shape=[3], num_elements=4 * place + 1
        )
        parts = tf.TensorArray(tf.float32, 3).write(place, x).write(0, -x).write(1, x * 2)
        stacked = tf.raw_ops.TensorListStack(
            input_handle=array, element_shape=[3], element_dtype=x.dtype
        )
        return stacked, parts.stack(), parts.gather(places % 3)

    places = np.array([8, 0, 3, 4, 1, 7, 5], np.int32)
    check(function, rows(7), places, np.array([0, 1, 0, 0, 0, 0, 1], np.int32), whole=None)


@in_sizes
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_whose_shape_is_said_are_parts_of_it(size, axis):
    raw = tf.raw_ops

    def function(x):
        item = tf.transpose(x) if axis else x
        shape = tf.shape(item)
        items = raw.TensorListReserve(element_shape=shape, num_elements=2, element_dtype=x.dtype)
        items = raw.TensorListSetItem(input_handle=items, index=1, item=item)
        longer = raw.TensorListResize(input_handle=items, size=3)

        def taken(items, index):
            return raw.TensorListGetItem(
                input_handle=items, index=index, element_shape=shape, element_dtype=x.dtype
            )

        stacked = raw.TensorListStack(
            input_handle=longer, element_shape=shape, element_dtype=x.dtype
        )
        length = raw.TensorListLength(input_handle=longer)
        return taken(items, 1) * 2, taken(items, 0) + 1, stacked * 2, length

    check(function, rows(size))


@sample(rows(7))
def test_of_an_element_that_was_never_written_nothing_is_taken_for_known(x):
    array = tf.TensorArray(tf.int32, 2, element_shape=[2]).write(0, tf.shape(x))
    return -tf.fill(array.read(1), 2.0), -tf.fill(array.read(0), 3.0)


@sample(rows, whole=None)
def test_a_map_over_examples_is_computed_whole(x):
    return tf.map_fn(lambda row: tf.reduce_sum(row) * row, x)


def test_a_function_called_twice_is_written_twice():
    inner = tf.function(lambda x: x - tf.reduce_mean(x, 0))
    check(lambda x: inner(inner(x) + 1.0), rows(5))


def test_a_loop_of_effects_runs_them_once_each():
    seen = []

    def function(x):
        def body(i):
            with tf.control_dependencies([tf.py_function(lambda n: seen.append(int(n)), [i], [])]):
                return [i + 1]

        return tf.while_loop(lambda i: i < 3, body, [0])[0] + tf.cast(tf.reduce_sum(x), tf.int32)

    strategy(3).partitioned(function)(tf.ones([5]))
    assert seen == [0, 1, 2]


@of_drawn_batches
def test_branches_loops_and_lists_are_those_of_one_device_wherever_the_batch_is(case):
    least, rounds = case.choose([30, 3, 11]), case.choose([3, 1])

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        s, flag = tf.reduce_sum(t, case.axis), tf.reduce_max(t) < least

        def body(i, y, total, other):
            return i + 1, whole - y, total + tf.reduce_sum(y, case.axis), y[:1] * 0 + other

        carried = [0, t, tf.zeros_like(s), t[:1] * 0 + 1]
        same = [None] * case.rank
        shapes = [tf.TensorShape(each) for each in ([], same, same[1:], same)]
        items = tf.TensorArray(tf.float32, 2).write(0, t).write(1, whole * 2)
        return (
            tf.while_loop(lambda i, *_: i < rounds, body, carried, shapes),
            tf.cond(flag, lambda: t, lambda: whole),
            tf.cond(flag, lambda: s, lambda: tf.ones_like(s)),
            tf.cond(flag, lambda: s * 2, lambda: tf.reduce_max(t, case.axis)),
            tf.switch_case(tf.cast(t[(0,) * case.rank], tf.int32) % 2, [lambda: t, lambda: -t]),
            items.stack(),
            items.read(1),
            tf.TensorArray(tf.float32, tf.shape(t)[0]).unstack(t).stack(),
        )

    case.check(function, exact=True)


@in_sizes
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_of_a_list_whose_number_of_axes_is_unknown_are_returned(size, axis):
    def function(x):
        moved = tf.transpose(x) if axis else x
        array = tf.TensorArray(tf.float32, 2, infer_shape=False, element_shape=None)
        array = array.write(0, moved).write(1, moved * 2)
        return array.stack(), array.read(1), array.read(0) * 2

    check(function, rows(size), whole=None, exact=True)


@in_sizes
def test_rows_are_scattered_into_a_list_that_is_there(size):
    def function(x):
        turned, total = tf.transpose(x), tf.reduce_sum(x, 0)
        steps = tf.TensorArray(tf.float32, 5).scatter([3, 1], turned[:2])
        steps = steps.write(0, turned[2]).scatter([4, 2], tf.sin(turned[1:3]))
        sums = tf.TensorArray(tf.float32, 4).write(0, total[0]).scatter([3, 1], total[1:3])
        whole = tf.TensorArray(tf.float32, 2).write(1, tf.ones_like(total))
        whole = whole.scatter([0], total[tf.newaxis])
        examples = tf.TensorArray(tf.float32, tf.shape(x)[0]).scatter(tf.range(tf.shape(x)[0]), x)
        return steps.stack(), sums.write(2, total[0]).stack(), whole.stack(), examples.stack()

    report = check(function, rows(size, 3), whole=None)
    assert "TensorListScatterIntoExistingList" not in {each.operation for each in report.whole}
