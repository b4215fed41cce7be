"""What a meter counts of the batches that steps take."""

import time

import numpy as np
import pytest

from tfdp.keras.trainer.compiled_steps import Meter


def test_it_counts_rows_and_waits():
    def slow():
        for rows in (4, 4, 2):
            time.sleep(0.01)
            yield {"x": np.ones([rows, 3])}, np.ones(rows)

    meter = Meter()
    for _ in meter.counted(slow()):
        time.sleep(0.02)  # which is not the input's
    assert (meter.steps, meter.examples) == (3, 10)
    assert meter.waited_seconds >= 0.03


def test_an_error_of_the_data_is_passed_on_and_not_counted():
    def failing():
        yield np.ones([2])
        raise OSError("gone")

    meter = Meter()
    counted = meter.counted(failing())
    next(counted)
    with pytest.raises(OSError, match="gone"):
        next(counted)
    assert (meter.steps, meter.examples) == (1, 2)
