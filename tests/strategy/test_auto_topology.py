"""`topology="auto"` in one process: measured once, kept in a file, the same training."""

import logging

import harness
import numpy as np
import pytest
import tensorflow as tf
from nccl_rules import as_nccl

from tfdp import topology
from tfdp.topology import serialization

__all__ = ["as_nccl"]


def summed(strategy):
    own = harness.per_replica(strategy, [np.full(7, 2.0**r, "float32") for r in range(3)])

    @tf.function
    def step():
        return strategy.run(
            lambda v: tf.distribute.get_replica_context().all_reduce("SUM", v), args=(own,)
        )

    return [copy.numpy().tolist() for copy in strategy.experimental_local_results(step())]


@pytest.mark.slow
def test_it_measures_decides_and_says_so_in_one_line(caplog):
    with caplog.at_level(logging.INFO, "tfdp"):
        strategy = harness.strategy(3, topology="auto")
    (line,) = [record.message for record in caplog.records if "topology" in record.message]
    assert line.startswith(f"topology auto: {strategy.topology.describe()}; buckets of ")
    assert "measured in" in line
    assert "inside a host" in line
    links = strategy.topology.links
    assert links.bytes_per_second_inside > 1e6
    assert strategy.topology == topology.decide(3, [0, 0, 0], links)
    assert summed(strategy) == [[7.0] * 7] * 3


@pytest.mark.slow
def test_a_file_keeps_the_decision_and_gives_it_back(tmp_path, monkeypatch, caplog):
    path = tmp_path / "topology.json"
    monkeypatch.setenv("TFDP_TOPOLOGY_FILE", str(path))
    first = harness.strategy(3, topology="auto").topology
    assert serialization.loads(path.read_text(), [0, 0, 0], "") == first
    links = topology.Links(1e-3, 1e8, 1e-3, 1e8)
    kept = topology.Auto((topology.Rule(None, topology.Tree()),), 2**21, links)
    path.write_text(serialization.dumps(kept, [0, 0, 0]))
    with caplog.at_level(logging.INFO, "tfdp"):
        strategy = harness.strategy(3, topology="auto")
    assert strategy.topology == kept
    assert f"as {path} says" in caplog.text
    assert summed(strategy) == [[7.0] * 7] * 3


@pytest.mark.slow
def test_a_file_for_other_ranks_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "topology.json"
    monkeypatch.setenv("TFDP_TOPOLOGY_FILE", str(path))
    harness.strategy(3, topology="auto")
    with pytest.raises(ValueError, match=r"on hosts \[0, 0\], but .*topology.json was decided"):
        harness.strategy(2, topology="auto")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace('"bucket_bytes": ', '"bucket_bytes": -'), "bucket_bytes -"),
        (lambda text: text.replace('"tree"', '"torus", "rows": 2, "columns": 2'), "Torus"),
        (lambda text: text + "\udcff", "is no text"),
    ],
    ids=["buckets", "a rule that does not cover the ranks", "no text"],
)
def test_a_file_that_cannot_be_right_is_named(spoil, message, tmp_path, monkeypatch):
    path = tmp_path / "topology.json"
    monkeypatch.setenv("TFDP_TOPOLOGY_FILE", str(path))
    links = topology.Links(1e-3, 1e8, 1e-3, 1e8)
    kept = topology.Auto((topology.Rule(None, topology.Tree()),), 2**21, links)
    path.write_text(spoil(serialization.dumps(kept, [0, 0, 0])), errors="surrogateescape")
    with pytest.raises(ValueError, match=message) as raised:
        harness.strategy(3, topology="auto")
    assert "topology.json" in str(raised.value)


def test_a_file_in_a_folder_that_is_missing_is_an_error_before_anything_is_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TFDP_TOPOLOGY_FILE", str(tmp_path / "missing" / "topology.json"))
    with pytest.raises(FileNotFoundError, match=r"Do `mkdir -p .*missing`"):
        harness.strategy(3, topology="auto")


def test_on_nccl_it_is_native_with_buckets_by_what_sums_take(as_nccl, caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        strategy = harness.strategy(3, topology="auto")
    assert not [each for each in caplog.records if each.name == "tfdp"]
    links = strategy.topology.links
    assert links.bytes_per_second_inside > 1e6
    assert strategy.topology.rules == (topology.Rule(None, topology.Native()),)
    assert strategy.extended.bucket_bytes == strategy.topology.bucket_bytes
    assert strategy.topology == topology.decide(3, [0] * 3, links, [topology.Native()])
    assert strategy.extended.replicas.reducer.is_native
    assert summed(strategy) == [[7.0] * 7] * 3


def test_what_nccl_cannot_run_is_said_when_a_strategy_is_made(as_nccl, caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        strategy = harness.strategy(3, topology="ring")
    (line,) = [record.message for record in caplog.records]
    assert "Ring() is made of what two ranks send each other" in line
    assert summed(strategy) == [[7.0] * 7] * 3


def test_one_replica_has_nothing_to_measure():
    assert harness.strategy(1, topology="auto").topology.links is None


def test_one_s_own_decision_is_taken_as_it_is():
    rules = (topology.Rule(10, topology.Ring()), topology.Rule(None, topology.Direct()))
    strategy = harness.strategy(3, topology=topology.Auto(rules))
    assert strategy.topology.rules == rules
    assert summed(strategy) == [[7.0] * 7] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": "rign"}, r"must name a known topology, but received 'rign'"),
        ({"topology": topology.Torus(rows=2, columns=4)}, r"8.*3|3.*8"),
        ({"bucket_bytes": 1023}, r"at least 1024, but received 1023"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        harness.strategy(3, **options)
