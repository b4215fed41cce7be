"""What synchronizations take, and what they say of what they do not."""

import keras
import pytest

import tfdp
from tfdp.synchronization import DiLoCo, LocalSGD

DEVICES = ["CPU:0"]


@pytest.mark.parametrize("every", [0, -1, 2.0, True, None, "10"])
@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_a_round_has_a_whole_number_of_updates(kind, every):
    with pytest.raises(ValueError, match=rf"`every` of {kind.__name__} must be a whole number"):
        kind(every)


@pytest.mark.parametrize("steps", [-1, 0.5, None])
def test_a_warm_up_has_a_whole_number_of_updates(steps):
    with pytest.raises(ValueError, match="`warmup_steps` of LocalSGD must be a whole number"):
        LocalSGD(2, warmup_steps=steps)


def test_an_outer_optimizer_is_made_by_a_function():
    with pytest.raises(TypeError, match="must be a function that makes the optimizer"):
        DiLoCo(2, keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match=r"must return a new.*returned 0\.7"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=DiLoCo(2, lambda: 0.7))


def test_a_description_tells_outer_optimizers_apart():
    ours, other = (
        DiLoCo(2, lambda rate=rate: keras.optimizers.SGD(rate)).describe() for rate in (0.7, 0.5)
    )
    assert ours != other
    assert ours == DiLoCo(2, lambda: keras.optimizers.SGD(0.7)).describe()
    assert DiLoCo(2).describe()["outer_optimizer"]["nesterov"] == "True"


def test_only_objects_of_the_package_are_taken_and_no_compression_beside_them():
    with pytest.raises(TypeError, match=r"must be an object of `tfdp\.synchronization`.*10"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=10)
    with pytest.raises(ValueError, match="One of `synchronization` and `compression`"):
        tfdp.DataParallelStrategy(
            DEVICES, synchronization=LocalSGD(2), compression=tfdp.compression.Cast("bfloat16")
        )


def test_a_strategy_describes_its_synchronization():
    strategy = tfdp.DataParallelStrategy(DEVICES, synchronization=LocalSGD(2))
    assert strategy.describe()["options"]["synchronization"] == {"name": "LocalSGD", "every": 2}
