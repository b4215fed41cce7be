"""The private Keras names that determinism needs, each with its reason.

Tested with Keras 3.11-3.15. `tests/base/determinism/test_private_names.py` fails when one of them
moves.
"""

# The counts by which Keras names layers: they are not empty once a layer or a model was made. And
# the generator of `keras.random` without a seed, which Keras 3.11 keeps when seeds are set.
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

# The seed that `keras.utils.set_random_seed` was given: there is no public way to read it.
from keras.src.utils.rng_utils import get_random_seed

__all__ = ["forget_global_generator", "get_random_seed", "named_objects"]


def named_objects() -> list[str]:
    """Returns the names that Keras has given since its import, or since `clear_session`."""
    return sorted(get_global_attribute("object_name_uids") or ())


def forget_global_generator() -> None:
    """Lets `keras.random` make its generator anew, from the seed that was set."""
    set_global_attribute("global_seed_generator", None)
