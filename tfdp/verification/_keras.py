"""Every private Keras name that verification needs, each with its reason.

Tested with Keras 3.15.1. `tests/verification/test_session.py` fails when one of them moves.
"""

# The counts by which Keras names layers, and its seeds: there is no public way to put them back.
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

NAME_COUNTS = "object_name_uids"

# Keras has a constant for it since 3.13, and the same string in place of it before.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

__all__ = [
    "GLOBAL_RANDOM_SEED",
    "GLOBAL_SEED_GENERATOR",
    "NAME_COUNTS",
    "get_global_attribute",
    "set_global_attribute",
]
