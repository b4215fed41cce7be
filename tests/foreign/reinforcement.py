"""Agents: a step on what was remembered, in a loop or in `fit`."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, EXAMPLES, FEATURES, LABELS, TARGETS
from foreign.table import agrees
from keras import layers, ops

ACTIONS = 3
STATES = FEATURES
LATER = np.roll(FEATURES, -1, axis=0)
REWARDS = TARGETS[:, 0]
DONE = (np.arange(EXAMPLES) % 5 == 4).astype("float32")
MEMORY = (STATES, LABELS, REWARDS, LATER, DONE)


def agent(*heads):
    """A network with a head for each width."""
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="relu")(inputs)
    outputs = [layers.Dense(width)(x) for width in heads]
    return keras.Model(inputs, outputs if len(heads) > 1 else outputs[0])


@agrees()
def deep_q_learning(strategy):
    """A loop of its own over a memory, with a target network that follows now and then."""
    memory = tf.data.Dataset.from_tensor_slices(MEMORY).batch(BATCH_SIZE)
    with strategy.scope():
        model, target = agent(ACTIONS), agent(ACTIONS)
        target.set_weights(model.get_weights())
        optimizer = keras.optimizers.Adam(2.5e-3, clipnorm=1.0)
        optimizer.build(model.trainable_variables)
        loss_function = keras.losses.Huber(reduction="none")

    def step(states, actions, rewards, later, done):
        future = (1.0 - done) * ops.max(target(later), axis=1)
        goals = rewards + 0.9 * future
        with tf.GradientTape() as tape:
            values = ops.sum(model(states) * ops.one_hot(actions, ACTIONS), axis=1)
            losses = loss_function(goals[:, None], values[:, None])
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train(batch):
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

    losses = []
    for _ in range(2):
        losses += [train(batch) for batch in strategy.experimental_distribute_dataset(memory)]
        target.set_weights(model.get_weights())
    return model, target, losses


class PolicyGradient(keras.Model):
    """REINFORCE: makes actions more likely by how well they were rewarded."""

    def __init__(self):
        super().__init__()
        self.policy = agent(ACTIONS)

    def train_step(self, data):
        states, actions, returns = data[0]
        with tf.GradientTape() as tape:
            log_probabilities = ops.log_softmax(self.policy(states))
            chosen = ops.take_along_axis(log_probabilities, actions[:, None], axis=1)[:, 0]
            entropy = -ops.sum(ops.exp(log_probabilities) * log_probabilities, axis=1)
            loss = -ops.mean(chosen * returns) - 0.01 * ops.mean(entropy)
        weights = self.policy.trainable_weights
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)
        self.optimizer.apply(gradients, weights)
        return {"loss": loss, "norm": norm}


@agrees()
def policy_gradient(strategy):
    """Steps on a batch of actions, clipped by hand."""
    data = tf.data.Dataset.from_tensor_slices(((STATES, LABELS, REWARDS),)).batch(BATCH_SIZE)
    with strategy.scope():
        model = PolicyGradient()
        model.compile(keras.optimizers.Adam(1e-2))
    return model, model.fit(data, epochs=2, verbose=0)


class ActorCritic(keras.Model):
    """PPO: a policy that is kept near the old one, and a critic of its states."""

    def __init__(self):
        super().__init__()
        self.both = agent(ACTIONS, 1)

    def train_step(self, data):
        states, actions, rewards, old = data[0]
        one_hot = ops.one_hot(actions, ACTIONS)
        with tf.GradientTape() as tape:
            logits, values = self.both(states, training=True)
            advantage = ops.stop_gradient(rewards - values[:, 0])
            ratio = ops.exp(ops.sum(ops.log_softmax(logits) * one_hot, axis=1) - old)
            bounded = ops.clip(ratio, 0.8, 1.2)
            actor = -ops.mean(ops.minimum(ratio * advantage, bounded * advantage))
            critic = ops.mean(ops.square(rewards - values[:, 0]))
            loss = actor + 0.5 * critic
        gradients = tape.gradient(loss, self.both.trainable_variables)
        self.optimizer.apply(gradients, self.both.trainable_variables)
        return {"actor": actor, "critic": critic}


@agrees()
def actor_critic(strategy):
    """Adds two means over the batch, one of a minimum."""
    old = np.full(EXAMPLES, -1.1, "float32")
    with strategy.scope():
        model = ActorCritic()
        model.compile(keras.optimizers.RMSprop(1e-2))
    rows = [STATES, LABELS, REWARDS, old]
    return model, model.fit(rows, batch_size=BATCH_SIZE, epochs=2, verbose=0)
