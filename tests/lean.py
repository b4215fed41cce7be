"""Imports Keras without scikit-learn and matplotlib, which it imports where they are: a second.

Imported before Keras by what tests start in processes of their own. Whoever uses the two imports
them afterwards.
"""

import sys

# One that is there already stays, with what is imported of it.
NAMES = [name for name in ("sklearn", "matplotlib") if name not in sys.modules]

sys.modules.update(dict.fromkeys(NAMES))

import keras  # noqa: E402, F401

for name in NAMES:
    del sys.modules[name]
