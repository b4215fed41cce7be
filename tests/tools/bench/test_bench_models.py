"""The models that are timed are what tables say, and their data fit them."""

import itertools

import pytest

from tfdp.tools.bench.bench_models import CLASSES, DENSE, build_model, random_batch


@pytest.mark.parametrize(("name", "count"), [("mlp", 12_605_450), ("small", 42_634)])
def test_the_dense_networks_are_of_the_size_that_tables_say(name, count):
    sizes = DENSE[name]
    assert build_model(name).count_params() == count
    widths = [sizes.features, *[sizes.units] * sizes.layers, CLASSES]
    assert sum(a * b + b for a, b in itertools.pairwise(widths)) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "small", "mobilenet", "resnet18", "transformer"])
def test_the_random_batch_fits_the_model(name):
    inputs, labels = random_batch(name, 3)
    model = build_model(name)
    assert model.input_shape[1:] == inputs.shape[1:]
    assert inputs.dtype == model.inputs[0].dtype
    assert (labels.dtype, labels.shape) == ("int32", (3,))
