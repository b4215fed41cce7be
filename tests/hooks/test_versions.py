"""The versions that were tested: others are said once, and what has moved is an error."""

import pytest

from tfdp.errors import HookError
from tfdp.hooks import versions


def a_class_of_keras():
    class Layer:
        def call(self):
            return "what was tested"

    Layer.__module__ = "keras.src.layers.layer"
    return Layer


@pytest.fixture
def layer(monkeypatch):
    """A class of Keras 3.12.4, which was tested, as 3.11.3 was; nothing has been said yet."""
    layer = a_class_of_keras()
    table = {"Layer.call": versions.fingerprint(layer.call)}
    known = {"keras": {"3.11.3": {"Layer.call": "0123456789ab"}, "3.12.4": table}, "tensorflow": {}}
    monkeypatch.setattr(versions, "tested", known.__getitem__)
    monkeypatch.setattr(versions, "current", {"keras": "3.12.4"}.__getitem__)
    monkeypatch.setattr(versions, "_warned", set())
    return layer


def test_a_tested_version_is_not_spoken_of(layer, caplog):
    versions.check([(layer, "call")])
    assert not caplog.records


def test_a_version_that_was_not_tested_is_said_once_with_those_that_were(
    layer, monkeypatch, caplog
):
    monkeypatch.setattr(versions, "current", {"keras": "3.99.0"}.__getitem__)
    versions.check([(layer, "call")])
    versions.check([(layer, "call")])
    [record] = caplog.records
    assert "Keras 3.11.3, 3.12.4" in record.getMessage()
    assert "Keras 3.99.0 is installed" in record.getMessage()


def test_a_function_that_is_another_than_in_every_tested_version_is_named(
    layer, monkeypatch, caplog
):
    monkeypatch.setattr(versions, "current", {"keras": "3.99.0"}.__getitem__)
    layer.call = lambda self: "something else"
    versions.check([(layer, "call")])
    [record] = caplog.records
    assert "differ there: Layer.call" in record.getMessage()


def test_a_function_of_another_tested_version_is_named_too(layer, monkeypatch, caplog):
    monkeypatch.setattr(versions, "current", {"keras": "3.11.3"}.__getitem__)
    versions.check([(layer, "call")])
    [record] = caplog.records
    assert "differ there: Layer.call" in record.getMessage()


def test_a_function_that_has_moved_is_an_error_that_names_the_versions(layer):
    del layer.call
    with pytest.raises(HookError, match=r"Layer\.call must exist.*Keras 3\.12\.4 has none"):
        versions.check([(layer, "call")])
