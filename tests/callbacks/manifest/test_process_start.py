"""The command and the environment, without what is secret; the commit, from real repositories."""

import os
import pathlib
import subprocess
import sys

import pytest

from tfdp.callbacks.manifest import process_start
from tfdp.callbacks.manifest.process_start import commit, is_secret, masked


@pytest.mark.parametrize(
    "name",
    [
        "TF_NUM_INTRAOP_THREADS",
        "TF_CONFIG",
        "TFDP_TOPOLOGY_FILE",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_P2P_DISABLE",
        "XLA_FLAGS",
        "KERAS_BACKEND",
        "OMP_NUM_THREADS",
        "MALLOC_TRIM_THRESHOLD_",
        "SLURM_NTASKS",
        "TF_TOKENIZER",
        "KERAS_MAX_TOKENS",
        "PYTHONHASHSEED",
    ],
)
def test_what_matters_is_there(name):
    assert process_start.environment({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "AWS_SECRET_ACCESS_KEY",
        "TF_API_KEY",
        "TFDP_TOKEN",
        "TFDP_SECRET",
        "TFDP_SECRET_FILE",
        "KERAS_PASSWORD",
        "NCCL_Secret",
        "KERAS_APIKEY",
        "TF_accessToken",
        "TF_CREDENTIALS",
        "TF_VAR_database",
        "SLURM_JWT",
    ],
)
def test_nothing_else_and_no_secret_is(name):
    assert process_start.environment({name: "1"}) == {}


def test_an_address_loses_its_user():
    proxied = process_start.environment({"TF_PROXY": "http://me:secret@host:80/x"})
    assert proxied == {"TF_PROXY": "http://host:80/x"}
    signed = process_start.environment({"TFDP_URL": "https://h/x?sig=a&n=3"})
    assert signed == {"TFDP_URL": "https://h/x?sig=***&n=3"}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--password", "x", "y"], ["--password", "***", "y"]),
        (["--password=x"], ["--password=***"]),
        (["--wandb-key", "--epochs", "3"], ["--wandb-key", "--epochs", "3"]),
        (["env", "HF_TOKEN=x", "train.py"], ["env", "HF_TOKEN=***", "train.py"]),
        (["s3://me:x@host/data"], ["s3://host/data"]),
        (["wandb.api_key=ABC"], ["wandb.api_key=***"]),
        (["+db.password=a b"], ["+db.password=***"]),
        (["~db.password=x", "++a/b.token=x"], ["~db.password=***", "++a/b.token=***"]),
        (["--token", "-abcDEF", "y"], ["--token", "***", "y"]),
        (
            ["https://h/x?token=abc&n=3&X-Amz-Signature=def"],
            ["https://h/x?token=***&n=3&X-Amz-Signature=***"],
        ),
        (["--url=h/x?token=abc"], ["--url=h/x?token=***"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: ***"]),
        (["-H", "X-Api-Key: abc"], ["-H", "X-Api-Key: ***"]),
        (["--header=Authorization: Bearer abc"], ["--header=Authorization: ***"]),
        (['--config={"api_key": "x", "n": 3}'], ['--config={"api_key": "***", "n": 3}']),
        (["--tokenizer", "gpt2", "--max-tokens", "512"],) * 2,
        (["tokenizer=gpt2", "model.max_tokens=512", "--author", "me"],) * 2,
        (["-c", "print(1)", "--epochs=3", ""], ["-c", "print(1)", "--epochs=3", ""]),
    ],
)
def test_a_secret_on_the_command_line_is_masked(words, shown):
    assert process_start.command(words) == shown


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


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN",
        "hfToken",
        "HFToken",
        "wandb.api_key",
        "X-Amz-Security-Token",
        "AWSAccessKeyId",
        "oauth2",
        "apikey",
        "dbpassword",
        "KEY1",
    ],
)
def test_a_part_of_a_name_makes_it_secret(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZER",
        "max_tokens",
        "maxTokens",
        "author",
        "monkey",
        "compass",
        "keras",
        "passthrough",
        "signal",
        "",
    ],
)
def test_a_secret_word_within_a_longer_one_does_not(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": {"api_key": "x, y"}, "n": 3}', '{"a": {"api_key": "***"}, "n": 3}'),
        (r"{\"api_key\": \"x\", \"n\": 3}", r"{\"api_key\": \"***\", \"n\": 3}"),
        ("{'token': 12, 'n': 3}", "{'token': ***, 'n': 3}"),
        (r'{"token": "a\"b", "n": 3}', '{"token": "***", "n": 3}'),
        ('{"token": ["a", "b"]}', '{"token": ***'),
        ("{user: a, password: b, n: 3}", "{user: a, password: ***, n: 3}"),
        ("{user:a,password:b}", "{user:a,password:***}"),
        ('{"token": "ab', '{"token": "***'),
        ('{"token": "ab\\', '{"token": "***'),
        ('{"u": "https://h?token=a", "n": 3}', '{"u": "https://h?token=***", "n": 3}'),
        ("https://h/#access_token=a&n=3", "https://h/#access_token=***&n=3"),
        ("https://me:a@b@h/x", "https://h/x"),
        ("HF_TOKEN=a train --api-key b --n 3", "HF_TOKEN=*** train --api-key *** --n 3"),
        ("login(token='a b', n=3)", "login(token='***', n=3)"),
        ("Proxy-Authorization: Basic a, b", "Proxy-Authorization: ***"),
        ("X-Other: Bearer a", "X-Other: Bearer ***"),
    ],
)
def test_the_values_of_secret_names_are_masked_in_a_text(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        '{"cluster": {"worker": ["auth-1.org:2222", "b:1"]}, "task": {"index": 0}}',
        "--xla_dump_to=/x --xla_gpu_autotune_level=0",
        "tokenizer=a max_tokens=3",
        "gs://bucket/keys/a.json",
        "C:\\data\\token",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert masked(text) == text


@pytest.mark.timeout(60)  # it takes many minutes where each character begins a name
def test_a_long_word_is_read_once():
    word = "a" * 300_000
    assert masked(word) == word
    assert masked(f"token={word}") == "token=***"
