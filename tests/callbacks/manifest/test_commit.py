"""The commit, from real repositories and from a git that hangs."""

import os
import pathlib
import subprocess
import sys

import pytest

from tfdp.callbacks.manifest.commit import commit


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit of `train.py`."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text("1")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_it_is_that_of_the_program_wherever_it_is_started(repository, tmp_path):
    found = commit(str(repository / "train.py"), str(tmp_path))
    assert found == {"revision": git(repository, "rev-parse", "HEAD"), "modified": False}


def test_a_changed_file_is_told(repository):
    (repository / "train.py").write_text("2")
    assert commit(str(repository / "train.py"), "/")["modified"] is True


def test_a_program_that_git_does_not_know_is_a_change(repository):
    (repository / "other.py").write_text("2")
    assert commit(str(repository / "other.py"), "/")["modified"] is True
    assert commit(str(repository / "train.py"), "/")["modified"] is False


def test_an_installed_program_is_no_part_of_a_repository(repository, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(repository / "venv"))
    (repository / "venv").mkdir()
    installed = repository / "venv" / "tool"
    installed.write_text("")
    assert commit(str(installed), str(repository))["modified"] is False


def test_the_working_directory_s_goes_where_there_is_no_program(repository):
    assert commit(None, str(repository))["revision"] == git(repository, "rev-parse", "HEAD")


def test_a_repository_without_a_commit_has_none(tmp_path):
    git(tmp_path, "init", "-q")
    assert commit(None, str(tmp_path)) is None


@pytest.mark.timeout(300)  # of the 600 that git would take
def test_a_git_that_hangs_is_given_up(repository, tmp_path, monkeypatch):
    hanging = tmp_path / "bin" / "git"
    hanging.parent.mkdir()
    hanging.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", str(hanging.parent))
    assert commit(None, str(repository), timeout_seconds=0.2) is None


def test_a_program_of_a_folder_that_is_gone_is_no_error(tmp_path):
    assert commit(str(pathlib.Path(tmp_path, "gone", "train.py")), str(tmp_path)) is None
