"""Everything becomes strict JSON."""

import json

import numpy as np
import pytest

from tfdp.callbacks.manifest.strict_json import plain, text_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, np.inf]), [1.0, "inf"]),
        ({2, 1}, [1, 2]),
        ({"a": (1, None)}, {"a": [1, None]}),
        (True, True),
        (b"x", "b'x'"),
    ],
)
def test_a_value_has_one_form(value, expected):
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
    assert json.loads(text_of(value)) == expected


def test_an_object_s_address_is_left_out():
    class Thing:
        pass

    assert plain(Thing()).endswith("Thing object>")


class Silent:
    """Raises whatever it is asked for."""

    def __repr__(self):
        raise RuntimeError("no repr")


def test_what_cannot_be_said_is_a_text_and_the_rest_stays():
    found = plain({"a": Silent(), "b": 10**5000, "c": 3})
    assert found["a"] == "cannot be described: RuntimeError: no repr"
    assert found["b"].startswith("cannot be described: ValueError")
    assert found["c"] == 3
    text_of(found)


def test_what_holds_itself_ends():
    ring = {"name": "ring", "others": []}
    ring["others"] += [ring, ring]
    ends = ["cannot be described: it holds itself or is too deep"] * 2
    assert plain(ring) == {"name": "ring", "others": ends}
    same = [1]
    assert plain([same, same]) == [[1], [1]]


def test_what_is_very_deep_ends():
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert "too deep" in text_of(deep)


def test_bytes_that_python_could_not_decode_can_be_written():
    assert plain({"file\udcff": "a\udcff"}) == {"file\\udcff": "a\\udcff"}
    text_of("a\udcff").encode()
