"""The algorithms of `tfdp.synchronization` on one device: workers in plain Keras, and NumPy."""

import harness
import keras
import numpy as np
import tensorflow as tf

from tfdp.base import sharding


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
        mix: A function of the number of a mixing, from 0, which returns the matrix that is applied
            to the workers' weights after every `every` updates; None: rounds end in one set.
        fragments: The positions of the weights of each fragment, which have an outer function each
            in the list `outer`; None: all are one.
        compress: A function of the positions of weights, and of each worker's outer gradients of
            them, which returns what stands for their mean; None: the mean.
        overlap: The weight of a worker's own weights where the next step computes while a round
            ends; None: it waits.
    """

    def __init__(
        self, make, count, every, warmup=0, outer=None, loss=None, mix=None, fragments=None,
        compress=None, overlap=None,
    ):  # fmt: skip
        self.mix, self.compress, self.overlap, self.due = mix, compress, overlap, None
        self.models = []
        for _ in range(count):
            harness.start_over()
            self.models.append(make())
            self.models[-1].optimizer.build(self.models[-1].trainable_variables)
        self.every, self.warmup = every, warmup
        everything = list(range(len(self.models[0].get_weights())))
        self.fragments = [everything] if fragments is None else fragments
        self.outers = [outer] if fragments is None else outer
        self.loss = loss or (lambda y, outputs: tf.reduce_mean((y - outputs) ** 2, -1))
        self.in_round = 0
        self.began = self.mean()

    def mean(self):
        """The mean of the workers' weights, in float64."""
        every = [[np.asarray(v, np.float64) for v in model.get_weights()] for model in self.models]
        return [np.mean(each, 0) for each in zip(*every, strict=True)]

    def updates(self):
        optimizer = self.models[0].optimizer
        return int(getattr(optimizer, "inner_optimizer", optimizer).iterations)

    def step(self, x, y):
        """One global batch: each worker takes its share, and n times its term of the gradient."""
        if self.due is not None:
            for place, end in zip(self.fragments[self.due], self._ends(self.due), strict=True):
                self.began[place] = end
        before, ends = self.updates(), np.cumsum(sharding.share_sizes(len(x), len(self.models)))
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
        if self.due is not None:
            for model in self.models:
                weights = model.get_weights()
                for place in self.fragments[self.due]:
                    own, start = np.float64(weights[place]), self.began[place]
                    weights[place] = self.overlap * own + (1 - self.overlap) * start
                model.set_weights(weights)
            self.due = None
        if self.updates() == before:
            return
        self.in_round += 1
        if self.mix is not None:
            if self.updates() % self.every == 0:
                self._apply(self.mix(self.updates() // self.every - 1))
            return
        for number in range(len(self.fragments)):
            if self._since(number) == 0 or self.updates() <= self.warmup:
                if self.overlap is None:
                    self._end(number)
                else:
                    self.due = number

    def _since(self, number):
        """The updates of a fragment since its last synchronization, modulo a round."""
        last = self.every * (number + 1) // len(self.fragments)
        if self.in_round < last:
            return self.in_round
        return (self.in_round - last) % self.every

    def _apply(self, matrix):
        every = [[np.asarray(v, np.float64) for v in model.get_weights()] for model in self.models]
        for row, model in zip(matrix, self.models, strict=True):
            weights = zip(*every, strict=True)
            model.set_weights([np.tensordot(row, np.stack(each), 1) for each in weights])

    def _ends(self, number):
        """Where all go on from at the end of a fragment's round."""
        places, outer = self.fragments[number], self.outers[number]
        ends = [self.mean()[i] for i in places]
        if outer is not None:
            began = [self.began[i] for i in places]
            moved = [b - m for b, m in zip(began, ends, strict=True)]
            if self.compress is not None:
                own = [[model.get_weights()[i] for i in places] for model in self.models]
                moved = self.compress(
                    places, [[b - v for b, v in zip(began, each, strict=True)] for each in own]
                )
            ends = outer(began, moved)
        return ends

    def _end(self, number):
        """Ends a fragment's round."""
        places, ends = self.fragments[number], self._ends(number)
        for model in self.models:
            weights = model.get_weights()
            for place, end in zip(places, ends, strict=True):
                weights[place] = end
            model.set_weights(weights)
        after = self.mean()
        for place in places:
            self.began[place] = after[place]
        if len(self.fragments) == 1:
            self.in_round = 0

    def synchronize(self):
        """Ends the round of all that is open."""
        if not self.in_round:
            return
        for number in range(len(self.fragments)):
            if len(self.fragments) == 1 or self.overlap is not None or self._since(number):
                self._end(number)
        self.in_round, self.due = 0, None
        self.began = self.mean()

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


def gossip_matrix(graph, count):
    """The matrix of each mixing of `Gossip`, in float64, from the definition of its graph."""
    steps = int(np.ceil(np.log2(count))) if count > 1 else 1

    def matrix(number):
        found = np.eye(count)
        hop = 2 ** (number % steps)
        for i in range(count):
            sources = {(i - hop) % count} if graph == "exponential" else {i - 1, (i + 1) % count}
            for j in {source % count for source in sources} - {i}:
                found[i, j] = 1.0
        return found / found.sum(1, keepdims=True)

    return matrix


class LargestWithFeedback:
    """The mean of what `ErrorFeedback(TopK(ratio))` sends, with each worker's residuals."""

    def __init__(self, ratio, smallest=1):
        self.ratio, self.smallest, self.residuals = ratio, smallest, {}

    def __call__(self, places, every):
        means = []
        for position, place in enumerate(places):
            total = 0.0
            for worker, own in enumerate(every):
                given = own[position] / len(every)
                if given.ndim == 1 or given.size < self.smallest:  # biases
                    total = total + given
                    continue
                given = given + self.residuals.get((worker, place), 0.0)
                flat, sent = given.ravel(), np.zeros(given.size)
                chosen = np.argsort(-np.abs(flat), kind="stable")[
                    : int(np.ceil(self.ratio * flat.size))
                ]
                sent[chosen] = flat[chosen]
                self.residuals[worker, place] = given - sent.reshape(given.shape)
                total = total + sent.reshape(given.shape)
            means.append(total)
        return means
