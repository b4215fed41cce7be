"""Buffers that change without copies, with a plain array as the oracle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfdp.communication.engines.host.chunked_array import ChunkedArray

SIZE = 12
changes = st.lists(
    st.tuples(st.sampled_from(["add", "put", "read"]), st.integers(0, SIZE), st.integers(0, SIZE))
)


@given(changes, st.booleans())
def test_parts_hold_what_an_array_would(steps, in_place):
    own = np.arange(SIZE, dtype="float64")
    result, plain = np.full(SIZE, np.nan), own.copy()
    parts = ChunkedArray(own, result)
    for number, (change, one, other) in enumerate(steps):
        where = slice(min(one, other), max(one, other))
        if where.start == where.stop:
            continue
        if change == "read":
            np.testing.assert_array_equal(parts.read(where), plain[where])
            continue
        value = np.arange(where.stop - where.start) + 100.0 * number
        place = parts.landing(where, change == "put") if in_place else None
        if place is not None:
            place[:] = value
            value = place
        plain[where] = plain[where] + value if change == "add" else value
        (parts.add if change == "add" else parts.put)(where, value)
    parts.finish()
    np.testing.assert_array_equal(result, plain)
    np.testing.assert_array_equal(own, np.arange(SIZE))
