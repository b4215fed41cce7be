"""Everything becomes strict JSON."""

import json

import numpy as np
import pytest

from tfdp.manifest.plain import plain, text_of


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
