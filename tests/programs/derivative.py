"""Programs of derivatives: of derivatives, of steps, of each example, of functions of one's own."""

import tensorflow as tf
from programs.library import WIDTH, descend, normal, program, rows, weight


@program
def adversaries_with_a_gradient_penalty():
    """A GAN whose critic's gradient by its inputs has a norm near one: second derivatives."""
    made, critic, head = weight(2, WIDTH), weight(WIDTH, 3), weight(3, 1)

    def judged(x):
        return tf.tanh(x @ critic) @ head

    def step(x, noise, share):
        with tf.GradientTape(persistent=True) as tape:
            fake = noise @ made
            between = share * x + (1 - share) * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                score = judged(between)
            slope = tf.norm(inner.gradient(score, between), axis=1)
            penalty = tf.reduce_mean(tf.square(slope - 1))
            worse = tf.reduce_mean(judged(fake)) - tf.reduce_mean(judged(x)) + 10 * penalty
            better = -tf.reduce_mean(judged(fake))
        gradients = tape.gradient(worse, [critic, head])
        own = tape.gradient(better, made)
        for variable, gradient in zip([critic, head, made], [*gradients, own], strict=True):
            variable.assign_sub(0.05 * gradient)
        return worse, better

    return step, rows(WIDTH, 2, 1)


@program
def steps_within_a_step():
    """MAML: the gradient goes back through steps down another loss."""
    w = weight(WIDTH, 1)

    def step(x, y, x2, y2):
        def loss():
            inner = tf.convert_to_tensor(w)
            for _ in range(2):
                with tf.GradientTape() as tape:
                    tape.watch(inner)
                    error = tf.reduce_mean(tf.square(tf.tanh(x @ inner) - y))
                inner -= 0.5 * tape.gradient(error, inner)
            return tf.reduce_mean(tf.square(tf.tanh(x2 @ inner) - y2))

        return descend(loss, w)

    return step, rows(WIDTH, 1, WIDTH, 1)


@program
def jacobians():
    w, v = weight(WIDTH, 3), weight(3, 2)

    def step(x, y):
        def loss():
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                outputs = tf.tanh(tf.tanh(x @ w) @ v)
                mean = tf.reduce_mean(outputs, 0)
            by_example = inner.batch_jacobian(outputs, x)
            by_weight = inner.jacobian(mean, w)
            return (
                tf.reduce_mean(tf.square(outputs - y))
                + tf.reduce_mean(tf.square(by_example))
                + 0.1 * tf.reduce_sum(by_weight**2)
            )

        return descend(loss, w, v)

    return step, rows(WIDTH, 2)


@program
def hessian_products():
    """The product of the loss' Hessian and its gradient, both ways."""
    w = weight(WIDTH, 2)

    def step(x, y):
        def loss():
            return tf.reduce_mean(tf.square(tf.tanh(x @ w) - y))

        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                value = loss()
            gradient = tape.gradient(value, w)
            norm = tf.reduce_sum(gradient * tf.stop_gradient(gradient))
        backward = outer.gradient(norm, w)
        with tf.autodiff.ForwardAccumulator(w, tf.ones_like(w)) as forward:
            with tf.GradientTape() as tape:
                value = loss()
            gradient = tape.gradient(value, w)
        w.assign_sub(0.1 * (gradient + backward + 0.1 * forward.jvp(gradient)))
        return value

    return step, rows(WIDTH, 2)


@program
def gradients_of_ones_own():
    w = weight(WIDTH, 3)

    @tf.custom_gradient
    def rounded(x):
        return tf.round(x), lambda upstream: upstream * tf.cast(tf.abs(x) < 1, x.dtype)

    @tf.custom_gradient
    def scaled_by_the_batch(x):
        def gradient(upstream):
            return upstream / (tf.norm(upstream) + 1e-3)

        return tf.identity(x), gradient

    @tf.recompute_grad
    def block(x):
        return tf.tanh(x @ w) * tf.reduce_mean(x)

    def step(x, y):
        def loss():
            z = rounded(block(x)) + scaled_by_the_batch(x @ w)
            return tf.reduce_mean(tf.square(z - y))

        return descend(loss, w)

    return step, rows(WIDTH, 3)


@program
def functions_within_the_step():
    w, v = weight(WIDTH, 3), weight(3, 2)

    @tf.function
    def hidden(x):
        return tf.nn.relu(x @ w)

    @tf.function
    def loss_of(x, y):
        return tf.reduce_mean(tf.square(hidden(x) @ v - y)) + tf.reduce_max(hidden(2 * x))

    def step(x, y):
        return descend(lambda: loss_of(x, y) + loss_of(x + 1, y), w, v)

    return step, rows(WIDTH, 2)


@program
def gradient_of_the_inputs():
    """Adversarial examples: inputs move up the loss, by the sign and by the norm."""
    w, v = weight(WIDTH, 3), weight(3, 1)

    def step(x, y):
        def error(x):
            return tf.reduce_mean(tf.square(tf.tanh(x @ w) @ v - y))

        with tf.GradientTape() as tape:
            tape.watch(x)
            value = error(x)
        slope = tape.gradient(value, x)
        moved = x + 0.1 * tf.sign(slope) + slope / (tf.norm(slope) + 1e-3)
        return descend(lambda: error(moved), w, v), moved

    return step, rows(WIDTH, 1)


@program
def paths_through_time():
    """CTC, with lengths of logits and labels for each example."""
    w = weight(3, 5)

    def step(x, labels, lengths, label_lengths):
        def loss():
            logits = tf.transpose(x @ w, [1, 0, 2])
            dense = tf.nn.ctc_loss(labels, logits, label_lengths, lengths, blank_index=0)
            return tf.reduce_mean(dense)

        return descend(loss, w)

    def batch(generator, length):
        return (
            normal(generator, length, 8, 3),
            generator.integers(1, 5, [length, 3]).astype("int32"),
            generator.integers(7, 9, length).astype("int32"),
            generator.integers(1, 4, length).astype("int32"),
        )

    return step, batch
