"""Grids, and how they follow the hosts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import interpreter, worlds

from tfdp import topology


@given(st.integers(1, 8), st.integers(1, 8))
@worlds.few
def test_any_grid_that_covers_the_ranks_costs_what_the_table_says(rows, columns):
    n = rows * columns
    schedule = topology.Torus(rows, columns).schedule(n, [0] * n, 0)
    cost = topology.cost(schedule, [0] * n, n)
    assert cost.steps == 2 * (rows + columns - 2)
    assert set(cost.bytes_sent) == {2 * (n - 1)}
    for result in interpreter.run(schedule, np.ones((n, 3))):
        assert list(result) == [n] * 3


@given(worlds.equal_hosts().filter(lambda hosts: hosts.count(0) > 1))
@worlds.few
def test_the_chosen_rows_are_inside_hosts_of_one_size(hosts):
    per_host = hosts.count(0)
    rows, columns = topology.Torus().grid(len(hosts), hosts)
    assert rows * columns == len(hosts)
    assert per_host % columns == 0
    schedule = topology.Torus().schedule(len(hosts), hosts, 0)
    along_rows = schedule.phases[: columns - 1]
    assert all(hosts[t.source] == hosts[t.target] for p in along_rows for t in p.transfers)
    cost = topology.cost(schedule, hosts, len(hosts))
    number = len(set(hosts))
    if number > 1:
        assert cost.max_bytes_between_hosts == 2 * (rows - 1) * len(hosts) // rows


@pytest.mark.parametrize(
    ("hosts", "grid"),
    [
        ([0] * 12, (3, 4)),
        ([0] * 16, (4, 4)),
        ([0] * 7, (1, 7)),
        ([0, 1] * 4, (2, 4)),
        ([0, 1, 2, 3, 4, 5, 6, 7] * 2, (8, 2)),
        ([0, 1] * 16, (4, 8)),
        (list(range(16)), (4, 4)),
        ([0, 0, 0, 1, 1, 1, 1, 1], (2, 4)),
        ([0, 0, 1, 1, 1, 1], (3, 2)),
        ([0], (1, 1)),
    ],
)
def test_the_most_square_grid_that_follows_the_hosts_is_chosen(hosts, grid):
    assert topology.Torus().grid(len(hosts), hosts) == grid


def test_a_grid_that_does_not_cover_the_ranks_is_refused_with_one_that_does():
    message = r"rows \* columns = 2 \* 3 = 6, but there are 8 replicas. Use rows=2, columns=4."
    with pytest.raises(ValueError, match=message):
        topology.Torus(rows=2, columns=3).schedule(8, [0, 1] * 4, 0)


@pytest.mark.parametrize("given_", [(2, None), (None, 2), (0, 4), (2, -1), (2.0, 4)])
def test_half_a_grid_or_one_without_ranks_is_refused(given_):
    with pytest.raises(ValueError, match=r"two whole numbers from 1 on, or neither.*or Torus\(\)"):
        topology.Torus(*given_)
