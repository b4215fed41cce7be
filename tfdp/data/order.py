"""The order of an epoch: a pure function of the seed and the epoch's number."""

import numpy as np


def epoch_order(length: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Returns the index of the example at each place of an epoch.

    The order is drawn by `numpy.random.RandomState`, whose stream NumPy has frozen (NEP 19), so it
    stays the same with other versions and on other machines.

    Args:
      length: The number of examples.
      seed: The pipeline's seed.
      epoch: The number of epochs that came before.
      shuffle: Whether the order is drawn. False: the order of the source.

    Returns:
      A permutation of range(length), int32 where that suffices, else int64.

    Cost: 4 bytes an example; 1 ms for 60,000.

    >>> epoch_order(6, seed=1, epoch=0, shuffle=True)
    array([4, 1, 3, 2, 0, 5], dtype=int32)
    """
    order = np.arange(length, dtype=np.int32 if length < 2**31 else np.int64)
    if shuffle:
        np.random.RandomState(_words(seed, epoch, 0)).shuffle(order)
    return order


def epoch_key(seed: int, epoch: int) -> int:
    """Returns a number for each epoch of each seed, of which its examples' seeds are made; int64.

    >>> epoch_key(1, 0) == epoch_key(1, 0), epoch_key(1, 0) == epoch_key(1, 1)
    (True, False)
    """
    words = np.random.RandomState(_words(seed, epoch, 1)).randint(0, 2**32, 2, dtype=np.uint64)
    return int(words[0] << np.uint64(31) ^ words[1])


def _words(seed: int, epoch: int, purpose: int) -> list[int]:
    """Returns the words, 32 bits each, that seed the generator."""
    mask = 2**32 - 1
    return [purpose, seed & mask, seed >> 32 & mask, epoch & mask, epoch >> 32 & mask]
