"""The command and the environment, without what is secret."""

import pytest

from tfdp.callbacks.manifest import process_start


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
