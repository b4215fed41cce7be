"""The algorithms of `tfdp.synchronization` on one device: workers in plain Keras, and NumPy."""

import harness
import keras
import numpy as np
import tensorflow as tf

from tfdp import shares


class Workers:
    """Workers that train by themselves, and agree on weights; weights are averaged in float64.

    Args:
        make: A function that makes a worker's compiled model, always with the same weights.
        count: The number of workers.
        every: The number of updates in a round.
        warmup: The number of first updates that each end a round.
        outer: A function of the weights at the beginning of a round and of the outer gradient,
            which returns the next weights; None: the mean is taken.
        loss: A function of targets and outputs: a number for each example.
    """

    def __init__(self, make, count, every, warmup=0, outer=None, loss=None):
        self.models = []
        for _ in range(count):
            harness.start_over()
            self.models.append(make())
            self.models[-1].optimizer.build(self.models[-1].trainable_variables)
        self.every, self.warmup, self.outer = every, warmup, outer
        self.loss = loss or (lambda y, outputs: tf.reduce_mean((y - outputs) ** 2, -1))
        self.in_round = 0
        self.began = self.mean()

    def mean(self):
        """The mean of the workers' weights, in float64."""
        every = [[np.float64(v) for v in model.get_weights()] for model in self.models]
        return [np.mean(each, 0) for each in zip(*every, strict=True)]

    def updates(self):
        optimizer = self.models[0].optimizer
        return int(getattr(optimizer, "inner_optimizer", optimizer).iterations)

    def step(self, x, y):
        """One global batch: each worker takes its share, and n times its term of the gradient."""
        before, ends = self.updates(), np.cumsum(shares.share_sizes(len(x), len(self.models)))
        gradients = []
        for model, a, b in zip(self.models, [0, *ends[:-1]], ends, strict=True):
            with tf.GradientTape() as tape:
                values = self.loss(y[a:b], model(x[a:b]))
                loss = tf.reduce_sum(values) * len(self.models) / len(x)
                scale = getattr(model.optimizer, "scale_loss", None)
                loss = loss if scale is None else scale(loss)
            gradients.append(tape.gradient(loss, model.trainable_variables))
        if not all(np.isfinite(g).all() for each in gradients for g in each):
            # The vote is a joint one: all skip.
            gradients = [[tf.fill(g.shape, np.inf) for g in each] for each in gradients]
        for model, own in zip(self.models, gradients, strict=True):
            model.optimizer.apply(own, model.trainable_variables)
        self.in_round += self.updates() - before
        full = self.in_round >= self.every or self.updates() <= self.warmup
        if self.updates() > before and full:
            self.synchronize()

    def synchronize(self):
        """Ends a round."""
        if not self.in_round:
            return
        mean = self.mean()
        if self.outer is not None:
            mean = self.outer(self.began, [b - m for b, m in zip(self.began, mean, strict=True)])
        for model in self.models:
            model.set_weights(mean)
        self.began, self.in_round = self.mean(), 0

    def fit(self, x, y, batch_size, epochs=1):
        for _ in range(epochs):
            for start in range(0, len(x), batch_size):
                self.step(x[start : start + batch_size], y[start : start + batch_size])
            self.synchronize()
        return self


class Nesterov:
    """SGD with Nesterov's momentum in float64, as Keras has it."""

    def __init__(self, rate=0.7, momentum=0.9):
        self.rate, self.momentum, self.velocities = rate, momentum, None

    def __call__(self, weights, gradients):
        if self.velocities is None:
            self.velocities = [0.0 for _ in weights]
        self.velocities = [
            self.momentum * v - self.rate * g
            for v, g in zip(self.velocities, gradients, strict=True)
        ]
        return [
            w + self.momentum * v - self.rate * g
            for w, v, g in zip(weights, self.velocities, gradients, strict=True)
        ]


class OuterOptimizer:
    """An outer optimizer of Keras, on one device."""

    def __init__(self, optimizer):
        self.optimizer, self.weights = optimizer, None

    def __call__(self, weights, gradients):
        if self.weights is None:
            self.weights = [keras.Variable(np.float32(w)) for w in weights]
        for variable, value in zip(self.weights, weights, strict=True):
            variable.assign(np.float32(value))
        self.optimizer.apply([tf.constant(np.float32(g)) for g in gradients], self.weights)
        return [variable.numpy() for variable in self.weights]
