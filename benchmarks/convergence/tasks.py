"""The small tasks that are trained, described without TensorFlow."""

import dataclasses
from collections.abc import Mapping

OPTIMIZERS = ("sgd", "nesterov", "adam", "lars", "lamb")


@dataclasses.dataclass(frozen=True)
class Task:
    """One network on one data set.

    Args:
      name: The name of the task for `--task`.
      title: The name of the task in the table and the picture.
      base_batch: The small batch that the others are compared with.
      batches: The default batches, in examples (for text: windows) of one update.
      epochs: The default number of epochs, the same for every batch.
      micro_batch: The most examples of one step over all replicas. A larger batch is accumulated
        from micro-batches of this size.
      learning_rates: For each optimizer the rate at which its sweep begins at the base batch.
      is_text: Whether the examples are windows of Shakespeare's text.
    """

    name: str
    title: str
    base_batch: int
    batches: tuple[int, ...]
    epochs: int
    micro_batch: int
    learning_rates: Mapping[str, float]
    is_text: bool = False


_TRANSFORMER = Task(
    name="transformer",
    title="Shakespeare by character, a transformer of one block",
    base_batch=128,
    batches=(128, 1024, 4096, 8192),
    epochs=10,
    micro_batch=512,
    learning_rates={
        "sgd": 0.2,
        "nesterov": 0.2,
        "adam": 0.002,
        "lars": 0.03,
        "lamb": 0.005,
    },
    is_text=True,
)

TASKS = {
    task.name: task
    for task in (
        Task(
            name="mlp",
            title="Fashion-MNIST, 6 x 256 ReLU without normalization",
            base_batch=64,
            batches=(64, 1024, 4096, 8192),
            epochs=20,
            micro_batch=1024,
            learning_rates={
                "sgd": 0.02,
                "nesterov": 0.02,
                "adam": 0.0005,
                "lars": 0.03,
                "lamb": 0.002,
            },
        ),
        Task(
            name="cnn",
            title="Fashion-MNIST, convolutions with batch normalization",
            base_batch=128,
            batches=(128, 1024, 4096, 8192),
            epochs=20,
            micro_batch=512,
            learning_rates={
                "sgd": 0.1,
                "nesterov": 0.1,
                "adam": 0.002,
                "lars": 0.03,
                "lamb": 0.005,
            },
        ),
        _TRANSFORMER,
        # The gradient of an embedding has a row for each character of a batch, here more than the
        # table has, which no compression takes. With one-hot rows it is dense.
        dataclasses.replace(
            _TRANSFORMER,
            name="transformer-one-hot",
            title="Shakespeare by character in one-hot rows, a transformer of one block",
        ),
    )
}


def starting_rate(task: Task, optimizer: str, batch: int) -> float:
    """Returns the rate at which the sweep of an optimizer begins at a batch.

    This is the base batch's rate, times the power of two nearest to the square root of the growth,
    so that the rates of all batches are on one grid of factor 2.

    >>> starting_rate(TASKS["mlp"], "lamb", 4096)
    0.016
    """
    growth = batch / task.base_batch
    doublings = max(0, round(growth).bit_length() - 1) // 2 if growth >= 1 else 0
    return task.learning_rates[optimizer] * 2**doublings
