"""Clusters and plans that cannot be are refused with the fix."""

import pytest

from tfdp.tools.prediction import ClusterModel, Workload, described_links, even_tensors
from tfdp.topology import Links

LINKS = Links(0, 1e9, 0, 1e9)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClusterModel(0, 1, LINKS), "from 1 to 512, but received 0"),
        (lambda: ClusterModel(1_000_000, 1, LINKS), "from 1 to 512, but received 1,000,000"),
        (lambda: ClusterModel(12, 8, LINKS), "fill hosts of 8, but received 12 ranks. Use 8 or 16"),
        (lambda: ClusterModel(8, 0, LINKS), "`ranks_per_host` must be at least 1"),
        (lambda: ClusterModel(8, 1, LINKS, 0.5), "`slowdown` must be 1 or more"),
        (lambda: described_links(1e10, 1e-5, 1e9, 1e-6), "at least as near"),
        (lambda: described_links(1e9, 1e-6, 1e10, 1e-5), "at least as near"),
        (lambda: Workload((), 0, 0), "at least one gradient"),
        (lambda: Workload(even_tensors(9), -1.0, 0), "`forward_seconds` must be 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
