"""The fixture of XLAStrategy's tests: strategies on so many CPU devices of JAX."""

import pytest


@pytest.fixture
def on_devices():
    """Returns a function that makes a strategy on the first devices, which stand for chips."""
    jax = pytest.importorskip("jax")
    import tfdp

    return lambda count, **options: tfdp.XLAStrategy(jax.devices()[:count], **options)
