"""Programs of TensorFlow's operations: losses that look at the whole batch, and derivatives."""

import keras
import tensorflow as tf
from programs.library import WIDTH, descend, normal, program, rows, weight


def embedded(x, w):
    return tf.math.l2_normalize(tf.tanh(x @ w), 1)


# ---- losses over pairs of examples


@program
def contrast_of_two_views():
    """SimCLR: each of both views of an example is told from all others of the batch."""
    w, noise = weight(WIDTH, 3), keras.random.SeedGenerator(5)

    def step(x):
        n = tf.shape(x)[0]
        one = x + 0.1 * keras.random.normal(tf.shape(x), seed=noise)

        def loss():
            z = embedded(tf.concat([one, 1.1 * x], 0), w)
            logits = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * n)
            others = tf.concat([tf.range(n) + n, tf.range(n)], 0)
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=others, logits=logits)
            )

        return descend(loss, w)

    return step, rows(WIDTH)


@program
def contrast_of_images_and_texts():
    """CLIP: both softmaxes of one matrix of similarities."""
    a, b, scale = weight(WIDTH, 3), weight(3, 3), weight(seed=1)

    def step(x, y):
        def loss():
            similar = tf.exp(scale) * tf.matmul(embedded(x, a), embedded(y, b), transpose_b=True)
            own = tf.range(tf.shape(x)[0])
            rows_ = tf.nn.sparse_softmax_cross_entropy_with_logits(own, similar)
            columns = tf.nn.sparse_softmax_cross_entropy_with_logits(own, tf.transpose(similar))
            return tf.reduce_mean(rows_ + columns) / 2

        return descend(loss, a, b, scale)

    return step, rows(WIDTH, 3)


@program
def queue_by_concatenation():
    w, queue = weight(WIDTH, 3), weight(6, 3, trainable=False)

    def step(x):
        def loss():
            return tf.reduce_mean(tf.matmul(x @ w, queue, transpose_b=True) ** 2)

        value = descend(loss, w, rate=0.02)
        queue.assign(tf.concat([embedded(x, w), queue], 0)[:6])
        return value

    return step, rows(WIDTH)


@program
def hardest_triplets():
    w = weight(WIDTH, 3)

    def step(x, y):
        def loss():
            z = x @ w
            apart = tf.reduce_sum(tf.square(z[:, None] - z[None]), -1)
            same = tf.equal(y[:, None], y[None])
            furthest = tf.reduce_max(tf.where(same, apart, 0.0), 1)
            nearest = tf.reduce_min(tf.where(same, 1e3, apart), 1)
            each = tf.nn.relu(furthest - nearest + 0.5)
            active = tf.cast(each > 0, tf.float32)
            return tf.math.divide_no_nan(tf.reduce_sum(each), tf.reduce_sum(active))

        return descend(loss, w)

    def batch(generator, length):
        return normal(generator, length, WIDTH), generator.integers(0, 2, length)

    return step, batch


@program
def variance_and_covariance():
    """VICReg, with statistics of the batch, and Barlow Twins' products of features."""
    w = weight(WIDTH, 3)

    def step(x, y):
        def loss():
            a, b = x @ w, y @ w
            count = tf.cast(tf.shape(x)[0], tf.float32)
            a0, b0 = a - tf.reduce_mean(a, 0), b - tf.reduce_mean(b, 0)
            spread = tf.sqrt(tf.math.reduce_variance(a, 0) + 1e-4)
            covariance = tf.matmul(a0, a0, transpose_a=True) / count
            crossed = tf.einsum("bi,bj->ij", a0, b0) / count - tf.eye(3)
            loose = covariance - tf.linalg.diag(tf.linalg.diag_part(covariance))
            return (
                tf.reduce_mean(tf.nn.relu(1 - spread))
                + tf.reduce_sum(tf.square(loose))
                + tf.reduce_sum(tf.square(crossed))
                + tf.reduce_mean(tf.square(a - b))
            )

        return descend(loss, w, rate=0.01)

    return step, rows(WIDTH, WIDTH)


@program
def whitened_features():
    w = weight(WIDTH, 3)

    def step(x):
        def loss():
            z = x @ w
            z -= tf.reduce_mean(z, 0)
            covariance = tf.matmul(z, z, transpose_a=True) + 3.0 * tf.eye(3)
            root = tf.linalg.cholesky(covariance)
            white = tf.linalg.triangular_solve(root, tf.transpose(z))
            return tf.reduce_mean(tf.abs(white)) + tf.linalg.logdet(covariance)

        return descend(loss, w)

    return step, rows(WIDTH)


@program
def rounds_of_balancing():
    """SwAV: assignments to prototypes are balanced over the batch by Sinkhorn's rounds."""
    w, prototypes = weight(WIDTH, 3), weight(3, 5)

    def step(x):
        def loss():
            scores = embedded(x, w) @ prototypes
            plan = tf.exp(tf.stop_gradient(scores))
            for _ in range(3):
                plan /= tf.reduce_sum(plan, 0, keepdims=True)
                plan /= tf.reduce_sum(plan, 1, keepdims=True)
            return -tf.reduce_mean(tf.reduce_sum(plan * tf.nn.log_softmax(scores), 1))

        return descend(loss, w, prototypes)

    return step, rows(WIDTH)


@program
def kernels_of_two_samples():
    """The distance of two distributions by kernels, with the median distance as the width."""
    w = weight(WIDTH, 2)

    def step(x, y):
        def loss():
            both = tf.concat([x @ w, y @ w], 0)
            apart = tf.reduce_sum(tf.square(both[:, None] - both[None]), -1)
            width = tf.stop_gradient(tf.reduce_mean(apart)) + 1e-3
            kernel = tf.exp(-apart / width)
            n = tf.shape(x)[0]
            return (
                tf.reduce_mean(kernel[:n, :n])
                + tf.reduce_mean(kernel[n:, n:])
                - (2 * tf.reduce_mean(kernel[:n, n:]))
            )

        return descend(loss, w)

    return step, rows(WIDTH, WIDTH)


# ---- order


@program
def quantiles_and_sorted_losses():
    w = weight(WIDTH, 1)

    def step(x, y):
        def loss():
            errors = tf.abs(x @ w - y)[:, 0]
            n = tf.shape(errors)[0]
            hardest = tf.reduce_mean(tf.sort(errors)[n // 2 :])
            trimmed = tf.reduce_mean(tf.math.top_k(-errors, tf.minimum(n, 3)).values)
            above = tf.reduce_mean(tf.maximum(0.9 * (y - x @ w), -0.1 * (y - x @ w)))
            return hardest - 0.1 * trimmed + above + tf.reduce_max(errors)

        value = descend(loss, w)
        ranks = tf.argsort(tf.argsort(y[:, 0]))
        return value, ranks, tf.argmax(y, 0), tf.cumsum(y), tf.searchsorted(tf.sort(y[:, 0]), [0.0])

    return step, rows(WIDTH, 1)


@program
def listwise_ranking():
    w = weight(WIDTH, 1)

    def step(x, y):
        def loss():
            order = tf.argsort(y[:, 0], direction="DESCENDING", stable=True)
            scores = tf.gather((x @ w)[:, 0], order)
            below = tf.math.cumulative_logsumexp(scores, reverse=True)
            return tf.reduce_sum(below - scores)

        return descend(loss, w, rate=0.02)

    return step, rows(WIDTH, 1)


@program
def losses_of_chosen_examples():
    """What is left of a batch by a mask: its length is known when the step runs."""
    w = weight(WIDTH, 2)

    def step(x, y):
        def loss():
            errors = tf.reduce_sum(tf.square(x @ w - y), 1)
            large = tf.boolean_mask(errors, y[:, 0] > 0)
            places = tf.where(y[:, 1] > 0)[:, 0]
            few = tf.gather(errors, places)
            parts = tf.dynamic_partition(errors, tf.cast(y[:, 0] > 0.3, tf.int32), 2)
            return (
                tf.reduce_sum(large)
                + tf.math.divide_no_nan(tf.reduce_sum(few), tf.cast(tf.size(few), tf.float32))
                + tf.reduce_sum(parts[0]) * 0.5
            )

        return descend(loss, w, rate=0.02)

    return step, rows(WIDTH, 2)


@program
def mixture_of_experts():
    """Each example goes to one of three networks, of which each takes so many in their order."""
    gate, experts = weight(WIDTH, 3), weight(3, WIDTH, 2)

    def step(x, y):
        def loss():
            chances = tf.nn.softmax(x @ gate)
            best, chosen = tf.math.top_k(chances, 1)
            chosen = chosen[:, 0]
            places = tf.cumsum(tf.one_hot(chosen, 3), 0) * tf.one_hot(chosen, 3)
            room = tf.cast(tf.shape(x)[0] // 3 + 1, tf.float32)
            kept = tf.cast(places <= room, tf.float32) * tf.one_hot(chosen, 3)
            found = tf.einsum("bd,edo,be->bo", x, experts, kept * best)
            parts = tf.dynamic_partition(x, chosen, 3)
            numbers = tf.dynamic_partition(tf.range(tf.shape(x)[0]), chosen, 3)
            computed = [part @ experts[index] for index, part in enumerate(parts)]
            found += tf.dynamic_stitch(numbers, computed)
            load = tf.reduce_mean(kept, 0) * tf.reduce_mean(chances, 0)
            return tf.reduce_mean(tf.square(found - y)) + 3 * tf.reduce_sum(load)

        return descend(loss, gate, experts)

    return step, rows(WIDTH, 2)


@program
def the_batch_s_axis_turned_about():
    w = weight(WIDTH, 3)

    def step(x):
        n = tf.shape(x)[0]

        def loss():
            y = x @ w
            products = tf.matmul(y, y, transpose_b=True)
            outer, inner = tf.meshgrid(y[:, 0], y[:, 1])
            terms = [
                tf.square(tf.roll(y, 1, 0) - y),
                tf.reverse(y, [0]) * y,
                tf.linalg.band_part(products, 0, -1),
                tf.linalg.set_diag(products, tf.zeros([n])),
                tf.einsum("bi,cj->bcij", y, y) ** 2,
                tf.tensordot(y, y, [[0], [0]]),
                tf.nn.softmax(y, 0) ** 2,
                tf.cumsum(y, 0, exclusive=True),
                tf.math.cumulative_logsumexp(y, 0),
                tf.repeat(y, 3, 0)[::2],
                tf.reshape(tf.repeat(y, 2, 0), [n, 2, 3])[:, 1],
                tf.one_hot(tf.range(n), n) @ y,
                tf.linalg.diag(y[:, 0]) @ y,
                tf.abs(outer - inner),
                tf.reshape(tf.transpose(tf.reshape(y, [n, 3, 1]), [1, 0, 2]), [3 * n]),
                tf.gather(y, tf.range(n - 1, -1, -1)) * y,
                tf.where(y > tf.reduce_mean(y, 0), y, tf.reduce_min(y, 0)),
                tf.clip_by_global_norm([y], 1.0)[0],
                tf.linalg.normalize(y, axis=0)[0],
                tf.reduce_logsumexp(y, 0),
                tf.reduce_prod(tf.tanh(y)),
                tf.math.top_k(tf.transpose(y), 1).values,
            ]
            return tf.add_n([tf.reduce_mean(each) for each in terms])

        value = descend(loss, w, rate=0.01)
        return value, tf.eye(n), tf.linspace(0.0, 1.0, n), tf.broadcast_to(x[:1], [n, WIDTH])

    return step, rows(WIDTH)
