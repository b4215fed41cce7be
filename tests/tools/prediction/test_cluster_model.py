"""Clusters and plans that cannot be are refused with the fix."""

import pytest

from tfdp.tools.prediction import ClusterModel, described_links
from tfdp.topology import Links

LINKS = Links(0, 1e9, 0, 1e9)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClusterModel(0, 1, LINKS), "from 1 to 512, but received 0"),
        (lambda: ClusterModel(1_000_000, 1, LINKS), "from 1 to 512, but received 1,000,000"),
        (lambda: ClusterModel(12, 8, LINKS), "fill hosts of 8, but received 12 ranks. Use 8 or 16"),
        (lambda: described_links(1e10, 1e-5, 1e9, 1e-6), "at least as near"),
        (lambda: described_links(1e9, 1e-6, 1e10, 1e-5), "at least as near"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
