"""Slurm's compressed node lists, against a compressor that is written here."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.cluster import expand_nodelist
from tfdp.errors import ClusterError

# A literal does not end in a digit or start with one, so that numbers stand alone.
names = st.from_regex(r"[a-z]([a-z0-9.-]{0,5}[a-z])?", fullmatch=True)
ranges = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4
)
parts = st.lists(st.one_of(names, ranges), min_size=1, max_size=3)


def compress(part):
    """A part as Slurm writes it."""
    if isinstance(part, str):
        return part
    texts = []
    for first, more, width in part:
        text = f"{first:0{width}}"
        texts.append(f"{text}-{first + more:0{width}}" if more else text)
    return f"[{','.join(texts)}]"


def listed(part):
    """The same part, written out."""
    if isinstance(part, str):
        return [part]
    return [
        f"{number:0{width}}"
        for first, more, width in part
        for number in range(first, first + more + 1)
    ]


@given(st.lists(parts, min_size=1, max_size=4))
def test_expanding_undoes_compressing(entries):
    nodelist = ",".join("".join(map(compress, entry)) for entry in entries)
    nodes = ["".join(node) for entry in entries for node in itertools.product(*map(listed, entry))]
    assert list(expand_nodelist(nodelist)) == nodes


@given(st.lists(names, min_size=1))
def test_plain_names_stay_as_they_are(nodes):
    assert list(expand_nodelist(",".join(nodes))) == nodes


@given(st.text(alphabet="ab01[],- ", max_size=12))
def test_any_other_text_is_expanded_or_refused(text):
    try:
        nodes = expand_nodelist(text)
    except ClusterError as error:
        assert repr(text) in str(error)
    else:
        assert nodes
        assert not set("".join(nodes)) & set("[], ")


@pytest.mark.parametrize(
    ("nodelist", "nodes"),
    [
        ("login", ["login"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-a[1-2]b", ["gpu-a1b", "gpu-a2b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[2,1],m3", ["n2", "n1", "m3"]),
        ("ip-10-0-0-[4-5]", ["ip-10-0-0-4", "ip-10-0-0-5"]),
    ],
)
def test_known_lists(nodelist, nodes):
    assert list(expand_nodelist(nodelist)) == nodes


@pytest.mark.parametrize(
    ("nodelist", "reason"),
    [
        ("", "no name at character 0"),
        ("a,", "no name at character 2"),
        (",a", "no name at character 0"),
        ("a,,b", "no name at character 2"),
        ("a[1-2", "'[' at character 1"),
        ("a1-2]", "']' at character 4"),
        ("a[]", "'[' at character 1"),
        ("a[1,]", "'[' at character 1"),
        ("a[1-2-3]", "'[' at character 1"),
        ("a b", "' ' at character 1"),
        ("a[x]", "'x' is neither a number nor a range"),
        ("a[1-x]", "'1-x' is neither a number nor a range"),
        ("a[3-1]", "'3-1' runs backwards"),
        ("a[0-99999999999]", "more than 65536 nodes"),
        ("a[0-999][0-999]", "more than 65536 nodes"),
    ],
)
def test_a_malformed_list_says_where(nodelist, reason):
    with pytest.raises(ClusterError) as error:
        expand_nodelist(nodelist)
    assert f"but is {nodelist!r}" in str(error.value)
    assert reason in str(error.value)
    assert "TFDP_COORDINATOR=host:port" in str(error.value)
