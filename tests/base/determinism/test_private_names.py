"""The private names that determinism stands on are what it expects."""

import keras
import tensorflow as tf

from tfdp.base.determinism import _keras, _tensorflow


def test_the_seeds_can_be_read():
    keras.utils.set_random_seed(11)
    assert (_keras.get_random_seed(), _tensorflow.global_seed()) == (11, 11)
    tf.random.set_seed(12)
    assert (_keras.get_random_seed(), _tensorflow.global_seed()) == (11, 12)


def test_tensorflow_says_whether_it_is_deterministic():
    assert _tensorflow.is_op_determinism_enabled() is False


def test_keras_counts_what_it_names():
    keras.utils.clear_session(free_memory=False)
    assert _keras.named_objects() == []
    keras.layers.Dense(1)
    assert _keras.named_objects() == ["dense"]


def test_the_generator_without_a_seed_begins_anew():
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        _keras.forget_global_generator()
        drawn.append(keras.random.normal([4]))
    assert tf.reduce_all(drawn[0] == drawn[1])
    assert not tf.reduce_all(drawn[0] == keras.random.normal([4]))
