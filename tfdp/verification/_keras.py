"""The private names of Keras that verification needs, each with its reason.

Tested with Keras 3.11-3.15. `tests/verification/test_fresh_state.py` fails when one of them moves.
"""

# Access to the counts by which Keras names layers, and to its seeds. No public function restores
# them.
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

NAME_COUNTS = "object_name_uids"

# Keras has a constant for this name since 3.13, and writes the same string out before.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

__all__ = [
    "GLOBAL_RANDOM_SEED",
    "GLOBAL_SEED_GENERATOR",
    "NAME_COUNTS",
    "get_global_attribute",
    "set_global_attribute",
]
