"""The private names that verification stands on are what it expects, and all comes back."""

import harness
import keras
import numpy as np
import tensorflow as tf

from tfdp.keras._keras import NAME_COUNTS, global_state
from tfdp.strategy._tensorflow_programs import context
from tfdp.verification import fresh_state


def test_names_are_counted_anew_and_go_on_where_they_were():
    keras.utils.clear_session(free_memory=False)
    keras.layers.Dense(1)
    with fresh_state.fresh(1):
        assert keras.layers.Dense(1).name == "dense"
        assert global_state.get_global_attribute(NAME_COUNTS)["dense"] == 1
    assert keras.layers.Dense(1).name == "dense_1"


def draws():
    return np.random.random(), tf.random.uniform([]).numpy(), keras.random.uniform([]).numpy()


def test_every_generator_goes_on_where_it_was():
    harness.start_over(5)  # `set_random_seed` of Keras before 3.13 is no fresh start
    first, second = draws(), draws()
    harness.start_over(5)
    assert draws() == first
    with fresh_state.fresh(1):
        inside = draws()
    assert draws() == second
    with fresh_state.fresh(1):
        assert draws() == inside


def test_a_process_without_seeds_stays_without():
    eager = context()
    before = eager._seed
    eager._seed = None
    try:
        with fresh_state.fresh(1):
            assert eager._seed == 1
        assert eager._seed is None
    finally:
        eager._seed = before
