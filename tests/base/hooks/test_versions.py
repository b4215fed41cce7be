"""What is said of versions of Keras and TensorFlow that were not tested."""

import logging

import keras
import pytest

import tfdp.keras
from tfdp.base.hooks import versions
from tfdp.base.lazy_imports import lazy_names
from tfdp.base.warn_once import warn_once
from tfdp.errors import HookError

EXPORT = (keras.Model, "export")


@pytest.fixture(autouse=True)
def nothing_said():
    tfdp.keras.register()
    warn_once.cache_clear()


def test_a_function_that_is_gone_is_an_error_that_names_it_and_the_versions():
    with pytest.raises(HookError) as error:
        versions.check([EXPORT, (keras.layers.Layer, "_gone")])
    assert "Layer._gone must exist" in str(error.value)
    assert f"Keras {keras.__version__} has none" in str(error.value)
    assert f"tested with {versions.describe_tested()}" in str(error.value)


def test_a_private_name_that_is_gone_is_an_error_that_names_the_versions(monkeypatch, tmp_path):
    (tmp_path / "needs_what_is_gone.py").write_text("from keras.src.layers.layer import Gone")
    monkeypatch.syspath_prepend(tmp_path)
    get, _ = lazy_names({"__name__": "p", "__all__": []}, {"it": ("needs_what_is_gone", None)})
    with pytest.raises(HookError, match=f"Keras {keras.__version__} lacks it: .*'Gone'"):
        get("it")


def test_a_tested_version_is_silent(caplog):
    versions.check([EXPORT])
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_a_version_that_was_not_tested_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.99.0")
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        versions.check([EXPORT])
        versions.check([EXPORT])
    [record] = [each for each in caplog.records if each.name == "tfdp"]
    assert versions.describe_tested() in record.getMessage()
    assert "but Keras 3.99.0 is installed" in record.getMessage()
    assert "are there as in a tested version" in record.getMessage()


@pytest.mark.parametrize("version", [keras.__version__, "3.99.0"])
def test_a_function_that_differs_is_named(caplog, monkeypatch, version):
    monkeypatch.setattr(keras, "__version__", version)
    monkeypatch.setattr(keras.Model, "export", lambda self, path: None)
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        versions.check([EXPORT])
    assert "differ there: Model.export" in caplog.text


def test_a_patch_release_of_a_tested_minor_version_is_silent(caplog, monkeypatch):
    minor = keras.__version__.rpartition(".")[0]
    monkeypatch.setattr(keras, "__version__", f"{minor}.99")
    versions.check([EXPORT])
    assert not [each for each in caplog.records if each.name == "tfdp"]
