"""Hypothesis strategies: ranks on hosts, listed in any order."""

from hypothesis import settings
from hypothesis import strategies as st

# Schedules of 64 ranks have thousands of transfers.
few = settings(max_examples=15)


@st.composite
def equal_hosts(draw, max_world_size=64):
    """The hosts of up to 64 ranks, as many ranks on each."""
    ranks = draw(st.integers(1, max_world_size), label="ranks per host")
    number = draw(st.integers(1, max_world_size // ranks), label="hosts")
    return draw(st.permutations(list(range(number)) * ranks))


def any_hosts(max_world_size=64):
    """Also of different sizes, down to one rank, and with gaps between the hosts' indices."""
    sizes = st.integers(1, max_world_size)
    uneven = st.tuples(sizes, st.integers(0, 9)).flatmap(
        lambda limits: st.lists(st.integers(0, limits[1]), min_size=limits[0], max_size=limits[0])
    )
    return equal_hosts(max_world_size) | uneven
