"""The fresh state of the process for each run (seeds, names, dtypes), restored afterwards."""

import contextlib
import logging
import random
from collections.abc import Iterator

import keras
import numpy as np

from tfdp.keras._keras import (
    GLOBAL_RANDOM_SEED,
    GLOBAL_SEED_GENERATOR,
    NAME_COUNTS,
    global_state,
)
from tfdp.strategy._tensorflow_programs import context

_OF_KERAS = (NAME_COUNTS, GLOBAL_SEED_GENERATOR, GLOBAL_RANDOM_SEED)


@contextlib.contextmanager
def fresh(seed: int) -> Iterator[None]:
    """Sets all seeds to `seed` and lets Keras count names anew within the context.

    Afterwards random states, counts of names, dtype policy and default dtype are restored. Models
    and layers that were made before do not change.
    """
    of_keras = {name: global_state.get_global_attribute(name) for name in _OF_KERAS}
    python, numpy = random.getstate(), np.random.get_state()
    eager = context()
    seed_before, generator_before = eager._seed, getattr(eager, "_rng", None)
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    global_state.set_global_attribute(NAME_COUNTS, None)
    # The generator of draws without a seed must be made anew; `set_random_seed` of Keras before
    # 3.13 would keep it.
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        for name, value in of_keras.items():
            global_state.set_global_attribute(name, value)
        random.setstate(python)
        np.random.set_state(numpy)
        eager._seed, eager._rng = seed_before, generator_before
        keras.config.set_dtype_policy(policy)
        keras.config.set_floatx(floatx)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses TensorFlow's warnings of functions that are traced again and again, as here."""

    def keep(record: logging.LogRecord) -> bool:
        return "retracing" not in record.getMessage()

    logging.getLogger("tensorflow").addFilter(keep)
    try:
        yield
    finally:
        logging.getLogger("tensorflow").removeFilter(keep)
