"""Clipping acts on the gradient of the global batch, never on a replica's share of it."""

import harness
import keras
import numpy as np
import pytest
import tiers
from keras import optimizers

# Each threshold lies below what the first gradients reach.
CLIPS = [{"global_clipnorm": 0.3}, {"clipnorm": 0.3}, {"clipvalue": 0.1}]
each_clip = pytest.mark.parametrize(
    "clip",
    tiers.first_of(*CLIPS),
    ids=lambda clip: next(iter(clip)),
)


def sgd(**clip):
    return optimizers.SGD(0.1, momentum=0.5, **clip)


WRAPPERS = {
    "plainly": sgd,
    "under a loss scale": lambda **clip: optimizers.LossScaleOptimizer(sgd(**clip)),
    "with a loss scale factor": lambda **clip: sgd(loss_scale_factor=8.0, **clip),
}


def embedding_model(**clip):
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizers.SGD(1.0, **clip), loss="mse")
    return model


@pytest.mark.telling
@pytest.mark.parametrize(
    ("clip", "wrapper"),
    [
        (CLIPS[0], "plainly"),
        pytest.param(CLIPS[1], "under a loss scale", marks=pytest.mark.exhaustive),
        pytest.param(CLIPS[2], "with a loss scale factor", marks=pytest.mark.exhaustive),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_clipping_acts_on_the_reduced_gradient(clip, wrapper, trains_as_one_device):
    _, clipped = trains_as_one_device(lambda: harness.dense_model(WRAPPERS[wrapper](**clip)))
    free = harness.train(lambda: harness.dense_model(sgd()), harness.fit_arrays)
    changed = max(np.abs(a - b).max() for a, b in zip(clipped.weights, free.weights, strict=True))
    assert changed > 1e-2, "The threshold does not bite; the comparison says nothing."


@pytest.mark.slow
@each_clip
def test_clipping_acts_on_the_reduced_sparse_gradient(clip, trains_as_one_device):
    ids = np.random.default_rng(0).integers(0, 6, (24, 4)).astype("int32")
    targets = ids.sum(1, keepdims=True).astype("float32")
    tight = {name: bound / 10 for name, bound in clip.items()}

    def fit(model):
        return harness.fit_arrays(model, ids, targets)

    trains_as_one_device(lambda: embedding_model(**tight), fit)
