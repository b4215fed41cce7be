"""The torus: reduce-scatter along rows, all-reduce along columns, all-gather along rows."""

import dataclasses
import math
from collections.abc import Sequence

from tfdp.topology.nesting import nest
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Schedule, Topology, ranks_of_hosts


@dataclasses.dataclass(frozen=True)
class Torus(Topology):
    """A grid of rings in rows and columns: the fewest bytes, in fewer steps than one ring.

    The ranks, host by host, fill a grid of r rows and c columns.

    1. Reduce-scatter around each row, c-1 steps. Then each rank has 1/c of its row's sum.
    2. All-reduce of this part around each column, 2(r-1) steps.
    3. All-gather around each row, c-1 steps.

    Same bits: each chunk is summed along one row, then along one column, is complete at one rank,
    and is copied from there.

    Cost for S bytes and n = r·c ranks: each rank sends 2(n-1)/n·S, in 2(r+c-2) steps, one transfer
    at a time in each direction. Where rows are inside hosts, a host sends 2(r-1)/r·S to others.

    Reference: Mikami et al., Massively distributed SGD: ImageNet/ResNet-50 training in a flash,
    arXiv:1811.05233, 2018.

    Args:
      rows: The number of rows, or None to choose it by the hosts.
      columns: The number of columns, that is of ranks in a row, or None. Without both, rows are
        inside hosts if the hosts' sizes have a common divisor. The grid is then as square as
        possible; of two equally square ones the one with longer rows is chosen.

    Raises:
      ValueError: One is given without the other, or is below 1; when scheduled, if rows * columns
        is not the number of replicas.

    >>> schedule = Torus(rows=2, columns=4).schedule(8, [0, 0, 0, 0, 1, 1, 1, 1], 1024)
    >>> len(schedule.phases), schedule.chunks
    (8, 8)
    >>> Torus().grid(8, [0, 1, 0, 1, 0, 1, 0, 1])
    (2, 4)
    """

    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        given = (self.rows, self.columns)
        if given == (None, None):
            return
        if not all(isinstance(value, int) and value >= 1 for value in given):
            raise ValueError(
                "`Torus(rows, columns)` needs two whole numbers from 1 on, or neither, but "
                f"received rows={self.rows!r}, columns={self.columns!r}. Use "
                "Torus(rows=2, columns=4) for 8 replicas, or Torus() to have them chosen."
            )

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns rings in rows, with rings in columns in between; see `Topology.schedule`."""
        rows, columns = self.grid(world_size, hosts)
        ranks = [rank for group in ranks_of_hosts(world_size, hosts) for rank in group]
        row_ring = Ring().schedule(columns, [0] * columns, size_bytes)
        column_ring = Ring().schedule(rows, [0] * rows, size_bytes)
        grid = [ranks[row * columns : (row + 1) * columns] for row in range(rows)]
        return nest(grid, [row_ring] * rows, column_ring)

    def grid(self, world_size: int, hosts: Sequence[int]) -> tuple[int, int]:
        """Returns the numbers of rows and columns for these ranks."""
        best = _most_square(world_size, [len(group) for group in ranks_of_hosts(world_size, hosts)])
        if self.rows is None or self.columns is None:
            return best
        if self.rows * self.columns != world_size:
            raise ValueError(
                "`Torus(rows, columns)` must cover every replica: rows * columns = "
                f"{self.rows} * {self.columns} = {self.rows * self.columns}, but there are "
                f"{world_size} replicas. Use rows={best[0]}, columns={best[1]}."
            )
        return self.rows, self.columns


def _most_square(world_size: int, host_sizes: list[int]) -> tuple[int, int]:
    inside = math.gcd(*host_sizes)
    # Rows of one rank are no rows: where the hosts allow no others, rows may cross hosts.
    limit = inside if inside > 1 else world_size
    columns = min(
        (c for c in range(1, limit + 1) if limit % c == 0),
        key=lambda c: (c + world_size // c, -c),
    )
    return world_size // columns, columns
