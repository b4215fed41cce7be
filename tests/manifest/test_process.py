"""The command and the environment, without what is secret."""

import pytest

from tfdp.manifest import process


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
        "PYTHONHASHSEED",
    ],
)
def test_what_matters_is_there(name):
    assert process.environment({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "AWS_SECRET_ACCESS_KEY",
        "TF_API_KEY",
        "TFDP_TOKEN",
        "KERAS_PASSWORD",
        "NCCL_Secret",
        "TF_CREDENTIALS",
        "TF_VAR_database",
        "SLURM_JWT",
    ],
)
def test_nothing_else_and_no_secret_is(name):
    assert process.environment({name: "1"}) == {}


def test_an_address_loses_its_user():
    proxied = process.environment({"TF_PROXY": "http://me:secret@host:80/x"})
    assert proxied == {"TF_PROXY": "http://host:80/x"}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--password", "x", "y"], ["--password", "***", "y"]),
        (["--password=x"], ["--password=***"]),
        (["--wandb-key", "--epochs", "3"], ["--wandb-key", "--epochs", "3"]),
        (["env", "HF_TOKEN=x", "train.py"], ["env", "HF_TOKEN=***", "train.py"]),
        (["s3://me:x@host/data"], ["s3://host/data"]),
        (["-c", "print(1)", "--epochs=3", ""], ["-c", "print(1)", "--epochs=3", ""]),
    ],
)
def test_a_secret_on_the_command_line_is_masked(words, shown):
    assert process.command(words) == shown
