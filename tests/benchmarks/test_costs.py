"""`benchmarks costs`: a compiled step counts no more than that of Keras on JAX."""

import pytest
from tiers import cases

from benchmarks import costs
from benchmarks.costs_worker import MODELS

TABLE = {
    "tfdp": {"operations": 2e6, "bytes_accessed": 3e6},
    "keras_on_jax": {"operations": 2e6, "bytes_accessed": 4e6},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(MODELS, kept=("mlp", "lstm")))
def test_a_step_counts_no_more_than_that_of_keras_on_jax(name):
    pytest.importorskip("jax")
    found = costs.measured(name, examples=16, timeout_seconds=600)
    # The smallest network's step has four million: neither side has counted nothing.
    assert min(each["operations"] for each in found.values()) > 1e6
    assert max(costs.ratios(found).values()) <= costs.BOUND


def test_the_table_says_by_its_exit_code_that_a_step_counts_more(monkeypatch, capsys):
    found = {**TABLE, "tfdp": {**TABLE["tfdp"], "bytes_accessed": 4.05e6}}
    options = costs.CostsOptions(models=("mlp",))
    monkeypatch.setattr(costs, "measured", lambda *_: TABLE)
    assert costs.run(options) == 0
    assert capsys.readouterr().out.endswith("| mlp | 2.00 | 2.00 | 1.000 | 3.00 | 4.00 | 0.750 |\n")
    monkeypatch.setattr(costs, "measured", lambda *_: found)
    assert costs.run(options) == 1


def test_a_process_that_failed_is_said_and_the_others_are_shown(monkeypatch, capsys):
    def measured(name, *_):
        if name == "mlp":
            raise ChildProcessError("it was killed")
        return TABLE

    monkeypatch.setattr(costs, "measured", measured)
    assert costs.run(costs.CostsOptions(models=("mlp", "lstm"))) == 1
    said = capsys.readouterr()
    assert "mlp: it was killed" in said.err and said.out.splitlines()[-1].startswith("| lstm |")
