"""One run of each task, on very little."""

import numpy as np
import pytest

from benchmarks.convergence.runs import Run
from benchmarks.convergence.splits import CONTEXT, Splits
from benchmarks.convergence.training import epoch_orders, train

pytestmark = pytest.mark.slow

RUN = Run("mlp", "lamb", 16, 0.01, 0, epochs=2, replicas=2, micro_batch=8)


def splits(task):
    generator = np.random.default_rng(0)

    def part(count):
        if task == "transformer":
            windows = generator.integers(5, size=(count, CONTEXT + 1)).astype(np.int32)
            return windows[:, :-1], windows[:, 1:]
        shape = (8,) if task == "mlp" else (8, 8, 1)
        inputs = generator.standard_normal((count, *shape)).astype(np.float32)
        return inputs, generator.integers(5, size=count).astype(np.int32)

    return Splits(part(36), part(10), part(20), classes=5)


@pytest.mark.parametrize(
    ("task", "optimizer"),
    [
        ("mlp", "lamb"),
        pytest.param("cnn", "lars", marks=pytest.mark.exhaustive),
        pytest.param("transformer", "adam", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_has_its_epochs_updates_and_accuracies(task, optimizer):
    run = Run(task, optimizer, 16, 0.01, 0, epochs=2, replicas=2, micro_batch=8)
    result = train(run, splits(task))
    assert not result.diverged
    assert len(result.loss_by_epoch) == len(result.val_accuracy_by_epoch) == 2
    assert result.updates == 4  # 4 whole steps in each of 2 epochs, 2 of them accumulated
    assert result.val_accuracy == result.val_accuracy_by_epoch[-1]
    assert 0 <= result.test_accuracy <= 1
    assert result.versions.keys() == {"tfdp", "tensorflow", "keras", "numpy"}


@pytest.mark.parametrize(
    ("strategy", "fraction"),
    [
        ("", 1.0),
        pytest.param("compression=ErrorFeedback(Int8())", 0.27, marks=pytest.mark.exhaustive),
        # Once an epoch, of the 4 steps that an epoch has.
        pytest.param("synchronization=LocalSGD(200)", 0.25, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_with_a_strategy_s_arguments_counts_the_bytes_that_a_replica_sends(
    strategy, fraction
):
    run = Run("mlp", "nesterov", 8, 0.01, 0, 1, replicas=2, micro_batch=8, strategy=strategy)
    result = train(run, splits("mlp"))
    weights = (8 * 256 + 5 * 256**2 + 6 * 256) + 256 * 5 + 5
    assert result.bytes_sent == pytest.approx(fraction * 4 * 4 * weights, rel=0.05)


def test_a_run_that_diverges_ends_at_once_with_no_accuracy():
    run = Run("mlp", "sgd", 8, 1e30, 0, epochs=5, replicas=2, micro_batch=8)
    result = train(run, splits("mlp"))
    assert result.diverged
    assert (result.val_accuracy, result.test_accuracy, result.test_loss) == (0.0, 0.0, None)
    assert len(result.loss_by_epoch) < 5


def test_each_epoch_sees_whole_steps_of_different_examples_in_another_order():
    orders = epoch_orders(RUN, 36).reshape(2, 32)
    for order in orders:
        assert len(set(order)) == 32
    assert list(orders[0]) != list(orders[1])
    np.testing.assert_array_equal(epoch_orders(RUN, 36).reshape(2, 32), orders)
