"""Training by delayed gradients on one device: a queue around plain Keras, and NumPy."""

import numpy as np
import tensorflow as tf


class Replay:
    """One device that updates by the gradients of `steps` updates before.

    Args:
        model: A compiled model in plain Keras, whose optimizer accumulates nothing.
        steps: The delay.
        windows: The number of batches of a window, whose mean is one gradient.
        scale: The first loss scale, which halves where a gradient is not finite; None: there is
            none.
        loss: A function of targets and outputs: the loss of a batch.
    """

    def __init__(self, model, steps=1, windows=1, scale=None, loss=None):
        self.model, self.steps, self.windows, self.scale = model, steps, windows, scale
        self.loss = loss or (lambda y, outputs: tf.reduce_mean((y - outputs) ** 2))
        self.waiting, self.window = [], []
        model.optimizer.build(model.trainable_variables)

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True)) * (self.scale or 1.0)
        variables = self.model.trainable_variables
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, variables)]
        if self.scale is not None:
            if not all(np.isfinite(each).all() for each in gradients):
                self.scale /= 2
                return
            gradients = [each / self.scale for each in gradients]
        self.window.append(gradients)
        if len(self.window) < self.windows:
            return
        means = [sum(each) / self.windows for each in zip(*self.window, strict=True)]
        self.window = []
        if len(self.waiting) == self.steps:
            self.apply()
        self.waiting.append(means)

    def apply(self):
        self.model.optimizer.apply(self.waiting.pop(0), self.model.trainable_variables)

    def end(self):
        while self.waiting:
            self.apply()

    def fit(self, x, y, batch_size, epochs=1):
        for _ in range(epochs):
            for start in range(0, len(x), batch_size):
                self.step(x[start : start + batch_size], y[start : start + batch_size])
            self.end()
        return self


def momentum_in_numpy(kernel, bias, x, y, batch_size, epochs, steps, rate, momentum):
    """SGD with momentum on a linear model's squared errors, by delayed gradients, in float64."""
    weights = [np.float64(kernel), np.float64(bias)]
    velocities = [np.zeros_like(each) for each in weights]

    def apply(gradients):
        for index, gradient in enumerate(gradients):
            velocities[index] = momentum * velocities[index] - rate * gradient
            weights[index] = weights[index] + velocities[index]

    for _ in range(epochs):
        waiting = []
        for start in range(0, len(x), batch_size):
            a, b = (np.float64(each[start : start + batch_size]) for each in (x, y))
            errors = 2 * (a @ weights[0] + weights[1] - b) / len(a)
            gradients = a.T @ errors, errors.sum(0)
            if len(waiting) == steps:
                apply(waiting.pop(0))
            waiting.append(gradients)
        for gradients in waiting:
            apply(gradients)
    return weights
