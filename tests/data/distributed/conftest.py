"""The fixtures of the strategy's tests, which distributed datasets are compared by, too."""

from strategy.conftest import mirrored, rank

__all__ = ["mirrored", "rank"]
