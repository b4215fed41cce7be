"""`tfdp bench equivalence`: what N replicas change, under the stock strategy and under tfdp."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import tfdp
from tfdp.bench.equivalence_cases import CASES


@dataclasses.dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
      title: What the program does.
      stock: How `tf.distribute.MirroredStrategy` differs from one device.
      tfdp: How `tfdp.DataParallelStrategy` differs from one device.
    """

    title: str
    stock: Difference
    tfdp: Difference


@dataclasses.dataclass(frozen=True)
class Difference:
    """How an outcome differs from one device's.

    Attributes:
      relative: Largest difference over the largest value of one device; NaN where the outcome is.
      error: The error's type, where there is no outcome.
    """

    relative: float = float("nan")
    error: str = ""

    def __str__(self) -> str:
        return self.error or ("NaN" if np.isnan(self.relative) else f"{self.relative:.1e}")


def rows(replicas: int) -> list[Row]:
    """Runs every case on one device, under the stock strategy and under tfdp.

    The process must have `replicas` logical CPU devices.
    """
    devices = [f"CPU:{index}" for index in range(replicas)]
    measured: dict[tuple[str, str], Difference] = {}
    expected = {title: _run(case, None) for title, case in CASES.items()}
    # The stock strategy last: one of its failures may abort every later collective. One object for
    # all cases: two on the same devices collide.
    for side, strategy in (
        ("tfdp", tfdp.DataParallelStrategy(devices)),
        ("stock", tf.distribute.MirroredStrategy(devices)),
    ):
        for title, case in CASES.items():
            try:
                measured[title, side] = _difference(expected[title], _run(case, strategy))
            except Exception as error:  # What a user would see is what is shown.
                measured[title, side] = Difference(error=type(error).__name__)
    return [Row(title, measured[title, "stock"], measured[title, "tfdp"]) for title in CASES]


def run(replicas: int) -> int:
    """Prints the table; 1 if tfdp differs from one device by more than 1e-5 anywhere."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
    )
    table = Table(title=f"{replicas} replicas against one device: largest relative difference")
    for column in ("a Keras program with", "MirroredStrategy", "tfdp"):
        table.add_column(column)
    results = rows(replicas)
    for row in results:
        table.add_row(row.title, str(row.stock), str(row.tfdp))
    Console().print(table)
    return 0 if all(row.tfdp.relative <= 1e-5 for row in results) else 1


def _run(case: Callable[[], np.ndarray], strategy: tf.distribute.Strategy | None) -> np.ndarray:
    keras.utils.set_random_seed(0)
    with warnings.catch_warnings(), strategy.scope() if strategy else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        return case()


def _difference(expected: np.ndarray, seen: np.ndarray) -> Difference:
    if expected.shape != seen.shape:
        return Difference(error=f"shape {list(seen.shape)}")
    largest = np.abs(np.subtract(expected, seen, dtype=np.float64)).max()
    return Difference(relative=float(largest / np.abs(expected).max()))
