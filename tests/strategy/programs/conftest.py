"""Both strategies, on two devices each."""

import harness  # noqa: F401 - makes the logical devices
import pytest

import tfdp


def data_parallel():
    return tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])


def xla():
    return tfdp.XLAStrategy(pytest.importorskip("jax").devices()[:2])


@pytest.fixture(params=[data_parallel, xla], ids=lambda make: make.__name__)
def either(request):
    """A strategy of each kind."""
    return request.param()
