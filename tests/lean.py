"""Keras without scikit-learn and matplotlib, which it imports where they are: a second."""

import sys


def import_keras():
    """Imports Keras, before anything else does, in what tests start in processes of their own.

    Whoever uses the two imports them afterwards. What is imported already stays.
    """
    names = [name for name in ("sklearn", "matplotlib") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))
    try:
        import keras  # noqa: F401
    finally:
        for name in names:
            del sys.modules[name]
