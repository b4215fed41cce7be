"""What the programs train on: 15 examples, in batches of 8 and 7."""

import numpy as np

EXAMPLES, BATCH_SIZE, CLASSES, WORDS = 15, 8, 3, 20

_rng = np.random.default_rng(5)


def normal(*shape):
    """Numbers whose scale changes along the examples: a wrong weight of a share shows."""
    scale = np.linspace(2.0, 0.5, EXAMPLES).reshape(-1, *[1] * len(shape))
    return (scale * _rng.normal(size=(EXAMPLES, *shape))).astype("float32")


IMAGES = _rng.random((EXAMPLES, 8, 8, 1)).astype("float32")
IMAGES[: EXAMPLES // 3] *= 0.3
LABELS = _rng.integers(0, CLASSES, EXAMPLES)
FEATURES = normal(4)
TARGETS = (np.sin(FEATURES.sum(1, keepdims=True)) + 0.5 * FEATURES[:, :1]).astype("float32")
POINTS = normal(2)  # in a plane, for densities
TOKENS = _rng.integers(1, WORDS, (EXAMPLES, 6))
TOKENS[np.arange(6) >= _rng.integers(1, 7, (EXAMPLES, 1))] = 0  # padded behind


def two_batches(*arrays):
    """The arrays in two uneven batches, for `tfdp.verify`."""
    cut = BATCH_SIZE - 1
    return [tuple(array[rows] for array in arrays) for rows in (slice(0, cut), slice(cut, None))]
