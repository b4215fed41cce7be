"""What a plan sends of a gradient, against what the compressions themselves say."""

import keras
import pytest

import tfdp
from tfdp.tools.prediction import ClusterModel, GradientTensor
from tfdp.tools.prediction.sending import COMPRESSIONS, _sent, _takes
from tfdp.topology import Links

SHAPES = [(64,), (5000,), (64, 63), (64, 64), (4096, 1), (3, 3, 64, 128), (1000, 1000), (8, 4000)]
UPDATES = sorted(name for name, one in COMPRESSIONS.items() if one.waits)


def of(name):
    """The compression itself, as the plan writes it."""
    return eval(COMPRESSIONS[name].argument.partition("=")[2])  # our own words


@pytest.mark.parametrize("name", UPDATES)
def test_those_gradients_are_compressed_that_the_compression_takes(name):
    """Vectors are biases, which it leaves out by their name."""
    variables = [
        keras.Variable(keras.ops.zeros(shape), name="kernel" if len(shape) > 1 else "bias")
        for shape in SHAPES
    ]
    taken = of(name).takes(variables)
    assert tuple(_takes(COMPRESSIONS[name], GradientTensor(shape)) for shape in SHAPES) == taken
    assert len(set(taken)) == 2


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("shape", [(1024, 1024), (3, 3, 64, 128)])
def test_as_many_bytes_stand_for_a_gradient_as_the_compression_says(name, shape):
    on = ClusterModel(4, 1, Links(0, 1e9, 0, 1e9))
    sent = _sent([GradientTensor(shape)], on, "ring", COMPRESSIONS[name])
    kind = COMPRESSIONS[name].kind
    told = sum(size for _, size in sent) / (2 if kind == "blocks" else 1)  # there, and the sums
    assert told == pytest.approx(of(name).payload_bytes(shape), rel=0.01)


def test_a_cast_sends_half_of_float32():
    assert tfdp.compression.Cast("bfloat16").dtype == "bfloat16"
    on = ClusterModel(4, 1, Links(0, 1e9, 0, 1e9))
    [(_, size)] = _sent([GradientTensor((100,))], on, "ring", COMPRESSIONS["bfloat16"])
    assert size == 200
