"""Secret names, and texts without the values of such names."""

import pytest

from tfdp.callbacks.manifest.masks import is_secret, masked


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
