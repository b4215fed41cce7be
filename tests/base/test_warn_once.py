"""Warnings that a process logs once."""

import logging

import pytest

from tfdp.base import warn_once


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(warn_once, "_said", set())


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "tfdp"]


def test_a_warning_is_said_once_for_the_same_arguments(caplog):
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        for size in (3, 3, 5):
            warn_once.warn_once("%d examples", size)
    assert said(caplog) == ["3 examples", "5 examples"]


def test_of_one_key_a_warning_is_said_once_whatever_it_says(caplog):
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        for number, key in enumerate(["a", "a", "b"]):
            warn_once.warn_once("number %s", [number], key=key)
    assert said(caplog) == ["number [0]", "number [2]"]
