"""Warnings that a process logs once."""

import logging

import pytest

from tfdp.base.warn_once import warn_once


@pytest.fixture(autouse=True)
def nothing_said():
    warn_once.cache_clear()


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "tfdp"]


def test_a_warning_is_said_once_for_the_same_arguments(caplog):
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        for size in (3, 3, 5):
            warn_once("%d examples", size)
    assert said(caplog) == ["3 examples", "5 examples"]
