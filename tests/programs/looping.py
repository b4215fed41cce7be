"""Programs of branches and loops, and of what is written and read in lists."""

import tensorflow as tf
from programs.library import WIDTH, counter, descend, normal, program, rows, weight


@program
def updates_in_branches():
    """What the batch says decides whether and how weights are written."""
    w, b, skipped = weight(WIDTH, 1), weight(1), counter()

    def step(x, y):
        with tf.GradientTape() as tape:
            error = tf.square(x @ w + b - y)
            loss = tf.cond(
                tf.reduce_max(error) > 3,
                lambda: tf.reduce_mean(tf.sqrt(error + 1e-3)),
                lambda: tf.reduce_mean(error),
            )
        gradients = tape.gradient(loss, [w, b])

        def update():
            w.assign_sub(0.1 * gradients[0] * tf.reduce_max(x))
            b.assign_sub(0.1 * gradients[1])
            return tf.reduce_sum(x)

        def skip():
            skipped.assign_add(1)
            return tf.reduce_min(x)

        told = tf.cond(tf.linalg.global_norm(gradients) < 4, update, skip)
        chosen = tf.switch_case(
            tf.math.floormod(tf.shape(x)[0], 3),
            [lambda: tf.reduce_mean(x, 0), lambda: x[0], lambda: tf.reduce_max(x, 0)],
        )
        return loss, told, chosen, tf.cond(loss > 1, lambda: x + 1, lambda: x * y)

    return step, rows(WIDTH, 1)


@program
def loops_until_the_batch_agrees():
    """Loops whose number of rounds the batch decides, with and without gradients."""
    w, best = weight(WIDTH, 2), counter(0.0, tf.float32)

    def step(x, y):
        def loss():
            def body(i, z, error):
                z = tf.tanh(z @ tf.matmul(w, w, transpose_a=True)) + 0.1 * y
                return i + 1, z, tf.reduce_mean(tf.square(z - y))

            start = x @ w
            going = lambda i, z, error: (i < 4) & (error > 0.3)  # noqa: E731
            rounds, z, _ = tf.while_loop(going, body, [0, start, 1.0])
            return tf.reduce_mean(tf.square(z - y)) + 0.1 * tf.cast(rounds, tf.float32)

        value = descend(loss, w)

        def halve(rate):
            w.assign_sub(rate * tf.reduce_mean(x) * tf.ones_like(w))
            best.assign(tf.maximum(best, tf.reduce_max(x) * rate))
            return rate / 2

        rate = tf.while_loop(lambda rate: rate > 0.01, lambda rate: [halve(rate)], [0.1])
        return value, rate

    return step, rows(WIDTH, 2)


@program
def means_of_clusters():
    """K-means within a step: assignments and means, round by round."""
    centers = weight(3, WIDTH, trainable=False)

    def step(x):
        def body(i, centers):
            apart = tf.reduce_sum(tf.square(x[:, None] - centers[None]), -1)
            chosen = tf.one_hot(tf.argmin(apart, 1), 3)
            counts = tf.reduce_sum(chosen, 0)
            means = tf.matmul(chosen, x, transpose_a=True) / tf.maximum(counts[:, None], 1)
            return i + 1, tf.where(counts[:, None] > 0, means, centers)

        _, found = tf.while_loop(lambda i, _: i < 3, body, [0, tf.convert_to_tensor(centers)])
        centers.assign(found)
        return tf.reduce_sum(found)

    return step, rows(WIDTH)


@program
def maps_over_examples():
    """Examples one after the other, and steps of time of all examples together."""
    w, v = weight(3, 3), weight(3)

    def step(x, y):
        def loss():
            each = tf.map_fn(
                lambda pair: tf.reduce_sum(tf.square(tf.tanh(pair[0] @ w) - pair[1])),
                (x, y),
                fn_output_signature=tf.float32,
            )
            steps = tf.transpose(x, [1, 0, 2])
            states = tf.scan(lambda h, now: tf.tanh(h @ w + now), steps, tf.zeros_like(steps[0]))
            folded = tf.foldl(lambda total, row: 0.5 * total + tf.reduce_sum(row @ w), x, 0.0)
            return tf.reduce_mean(each) + tf.reduce_mean(states[-1] * v) + 0.01 * folded

        return descend(loss, w, v, rate=0.05)

    def batch(generator, length):
        return normal(generator, length, 4, 3), normal(generator, length, 4, 3)

    return step, batch


@program
def micro_batches_in_a_loop():
    """Gradients added up in a loop over parts of the batch, which are written and read in lists."""
    w = weight(WIDTH, 1)

    def step(x, y):
        parts = tf.math.minimum(2, tf.shape(x)[0])
        each = tf.shape(x)[0] // parts

        def body(i, total, losses):
            own = slice(i * each, (i + 1) * each)
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = tf.reduce_mean(tf.square(x[own] @ w - y[own]))
            return i + 1, total + tape.gradient(loss, w), losses.write(i, loss)

        losses = tf.TensorArray(tf.float32, size=parts)
        start = [0, tf.zeros_like(w), losses]
        _, total, losses = tf.while_loop(lambda i, *_: i < parts, body, start)
        w.assign_sub(0.1 * total)
        return losses.stack()

    return step, rows(WIDTH, 1)


@program
def beams_of_a_decoder():
    """A sequence is grown token by token, with the best continuations of each example."""
    table, w = weight(6, 3), weight(3, 6)

    def step(x):
        def body(t, ids, scores, state):
            state = tf.tanh(state + tf.gather(table, ids))
            chances = scores[:, :, None] + tf.nn.log_softmax(state @ w)
            scores, places = tf.math.top_k(tf.reshape(chances, [-1, 12]), 2)
            state = tf.gather(state, places // 6, batch_dims=1)
            return t + 1, places % 6, scores, state

        n = tf.shape(x)[0]
        start = [0, tf.zeros([n, 2], tf.int32), tf.tile([[0.0, -9.0]], [n, 1])]
        found = tf.while_loop(lambda t, *_: t < 3, body, [*start, tf.tile(x[:, None], [1, 2, 1])])
        with tf.GradientTape() as tape:
            scores = body(0, *found[1:])[2]
            loss = -tf.reduce_mean(tf.reduce_logsumexp(scores, 1))
        for variable, gradient in zip([table, w], tape.gradient(loss, [table, w]), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss, found[1]

    return step, rows(3)


@program
def branches_that_keep_what_others_do_not():
    """Branches keep lists or optionals for gradients in one place, of cut or whole values."""
    w, v = weight(WIDTH, WIDTH), weight(WIDTH)

    def if_positive(number, first, other):
        return tf.cond(number > 0, first, other)

    def rounds(y):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, y))[1]

    def either(y):
        smooth = lambda: tf.nn.softplus(y * v)  # noqa: E731
        return if_positive(tf.reduce_max(y) - 0.5, lambda: tf.tanh(y @ w), smooth)

    def numbers(x):
        def first():
            number = lambda: tf.reduce_sum(tf.exp(tf.reduce_mean(x, 0) * v))  # noqa: E731
            return if_positive(tf.reduce_mean(x), number, lambda: tf.reduce_mean(tf.tanh(x @ w)))

        def other():
            alike = lambda: tf.nn.softmax(tf.matmul(x @ w, x, transpose_b=True))  # noqa: E731
            mean = lambda: tf.reduce_mean(alike() ** 2)  # noqa: E731
            return if_positive(tf.reduce_mean(x) + 0.1, mean, lambda: tf.reduce_max(x * v))

        return if_positive(tf.reduce_max(x) - 1.2, first, other)

    def nested(i, y):
        high, low = tf.reduce_max(y), tf.reduce_min(y)

        def first():
            cut, whole = lambda: tf.tanh(y @ w), lambda: tf.nn.softmax(y, 0)
            inner = lambda: if_positive(-0.5 - low, cut, whole)  # noqa: E731
            return if_positive(high - 0.5, inner, lambda: y * tf.exp(v))

        def other():
            apart, cut = lambda: y - tf.reduce_max(y, 0), lambda: tf.sigmoid(y @ w) * y
            inner = lambda: if_positive(-0.2 - low, apart, cut)  # noqa: E731
            return if_positive(high - 0.2, inner, lambda: y * v * v)

        return i + 1, if_positive(tf.reduce_mean(y), first, other)

    def mixed(i, y):
        lists, optionals = lambda: rounds(y), lambda: either(y) - 0.3
        return i + 1, if_positive(tf.reduce_mean(y) - 0.02, lists, optionals)

    def step(x):
        def loss():
            found = [
                tf.while_loop(lambda i, _: i < 4, nested, (0, x))[1],
                tf.while_loop(lambda i, _: i < 3, mixed, (0, x))[1],
                if_positive(tf.reduce_mean(x), lambda: rounds(x), lambda: either(x)),
                if_positive(tf.reduce_mean(x), lambda: either(x), lambda: rounds(x) * v),
            ]
            return numbers(x) + tf.add_n([tf.reduce_mean(each**2) for each in found])

        return descend(loss, w, v, rate=0.05)

    return step, rows(WIDTH)


@program
def branches_in_loops():
    """Branches and loops within loops, whose gradients keep what the branches computed."""
    w, v = weight(WIDTH, WIDTH), weight(WIDTH)

    def step(x):
        def loss():
            def body(i, h, total):
                limit = 0.1 * tf.cast(i, tf.float32)
                h = tf.cond(tf.reduce_mean(h) > limit, lambda: tf.tanh(h @ w), lambda: h * v + 1)
                more = tf.cond(
                    tf.reduce_max(h) > 0.5, lambda: tf.reduce_sum(h * h), lambda: tf.reduce_mean(h)
                )
                return i + 1, h, total + more

            _, h, total = tf.while_loop(lambda i, *_: i < 3, body, [0, x, 0.0])

            def outer(i, s):
                def inner(j, s):
                    return j + 1, s + tf.reduce_mean(tf.abs(h) @ w) * tf.reduce_sum(s * v)

                return i + 1, tf.while_loop(lambda j, _: j < i, inner, [0, s])[1]

            _, s = tf.while_loop(lambda i, _: i < 3, outer, [0, v])
            extreme = tf.cond(
                total > 1,
                lambda: tf.cond(total > 2, lambda: tf.reduce_sum(h @ w), lambda: tf.reduce_max(h)),
                lambda: tf.reduce_min(h),
            )
            return 0.1 * total + tf.reduce_sum(s) + extreme

        return descend(loss, w, v, rate=0.01)

    return step, rows(WIDTH)


@program
def summands_in_branches_and_loops():
    """Gradients that are added up over steps, by branches, by loops and in lists."""
    w, kept, steps = weight(WIDTH, 3), weight(WIDTH, 3, seed=4, trainable=False), counter()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w))
        gradient = tape.gradient(loss, w)
        steps.assign_add(1)

        def apply():
            w.assign_sub(0.1 * (kept + gradient))
            kept.assign(tf.zeros_like(kept))
            return tf.reduce_sum(gradient)

        def keep():
            kept.assign_add(gradient)
            return tf.reduce_sum(x)

        def looped(update, start):
            return tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, update(s)), [0, start])[1]

        of_features = tf.reduce_sum(x, 0)[:, None]
        lists = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        for index in range(3):
            lists = lists.write(index, tf.reduce_sum(x * index, 0))
        return (
            tf.cond(tf.equal(steps % 2, 0), apply, keep),
            looped(lambda total: total + gradient, tf.zeros_like(gradient)),
            looped(lambda total: 2.0 * total + of_features, gradient),
            looped(lambda total: tf.tanh(total) + of_features, gradient),
            tf.cond(loss > 1, lambda: gradient, lambda: tf.zeros_like(gradient)),
            tf.cond(loss > 1, lambda: (x, of_features), lambda: (2 * x, x[:1, :] + of_features)),
            lists.stack(),
            lists.read(1),
            tf.TensorArray(tf.float32, 2).unstack(tf.stack([x, 2 * x])).gather([1, 0]),
            tf.TensorArray(tf.float32, 2, infer_shape=False).unstack([x, x]).concat(),
        )

    return step, rows(WIDTH)
