"""Starts sooner: Keras imports scikit-learn and matplotlib where they are, which takes a second.

Imported before Keras by what tests start in processes of their own, and what uses neither.
"""

import sys

sys.modules.update(sklearn=None, matplotlib=None)
