"""`tfdp.enable_determinism` where XLA compiles: equal runs have equal bits."""

import pathlib
import subprocess
import sys

import pytest

from tfdp.base import determinism

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "trains_deterministically.py"


def test_two_runs_leave_the_same_bits():
    pytest.importorskip("jax")
    first, again = (
        subprocess.check_output([sys.executable, SCRIPT, "1"], text=True) for _ in range(2)
    )
    assert len(first.split()) == 2  # the weights and the losses
    assert first == again


@pytest.mark.exhaustive("test_two_runs_leave_the_same_bits")
def test_another_seed_trains_otherwise():
    pytest.importorskip("jax")
    one, other = (
        subprocess.check_output([sys.executable, SCRIPT, seed], text=True) for seed in "12"
    )
    assert one != other


def test_gpus_sum_in_one_order_if_it_was_asked_for(monkeypatch):
    jax = pytest.importorskip("jax")
    from tfdp.strategy.xla.executables import _options

    assert _options("gpu") == _options("cpu") == {}
    monkeypatch.setattr(determinism, "are_operations_deterministic", lambda: True)
    assert _options("cpu") == {}
    assert list(_options("gpu").values()) == [True]
    # An option that this version does not know would be an error.
    jax.jit(lambda x: x + 1).lower(jax.numpy.ones(2)).compile(_options("gpu"))


def test_a_strategy_that_was_made_comes_too_early(on_devices, monkeypatch):
    from tfdp.base.determinism import process_seed

    monkeypatch.setattr(process_seed._STATE, "strategy_made", False)
    monkeypatch.setattr(process_seed._STATE, "seed", None)
    on_devices(2)
    with pytest.raises(RuntimeError, match="before a strategy is made"):
        determinism.enable_determinism(1)
