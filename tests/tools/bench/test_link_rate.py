"""The rate of a link."""

from tfdp.tools.bench import link_rate


def test_a_stream_on_loopback_is_measured():
    assert link_rate.measure([], [], "127.0.0.1", seconds=0.2) > 0
