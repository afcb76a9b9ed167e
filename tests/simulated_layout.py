"""Which ranks a simulated job has, where they run, and the process groups among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Family:
    """Process groups of one dimension of the layout: ranks, shape (groups, ranks of a group), disjoint and sorted.

    Every group has its own name, the number that torch's counter would have given it; `description` is the dimension's.
    """

    description: str
    first_name: int
    ranks: NDArray[np.int64]

    def name(self, group: int) -> str:
        return str(self.first_name + group)

    def ranks_text(self, group: int) -> str:
        """As the trace writes it: "[0, 1, 2, 3]"."""
        return str(self.ranks[group].tolist())


@dataclass(frozen=True)
class Layout:
    """dp x tp x pp ranks; neighbours in number share first the tp group, then the dp group, then the pipeline stage."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ranks_per_host: int = 8

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def hosts(self) -> int:
        return -(-self.size // self.ranks_per_host)

    @cached_property
    def _grid(self) -> NDArray[np.int64]:
        return np.arange(self.size, dtype=np.int64).reshape(self.pp, self.dp, self.tp)

    def stage(self, number: int) -> NDArray[np.int64]:
        """The ranks of a pipeline stage, ascending."""
        ranks: NDArray[np.int64] = self._grid[number].ravel()
        return ranks

    def stage_of(self, rank: int) -> int:
        return rank // (self.dp * self.tp)

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def host_ranks(self, host: int) -> list[int]:
        return [rank for rank in range(self.size) if self.host_of(rank) == host]

    def coordinates(self, rank: int) -> dict[str, int]:
        stage, replica, shard = (int(place[0]) for place in np.nonzero(self._grid == rank))
        return {"dp": replica, "tp": shard, "pp": stage}

    @cached_property
    def world(self) -> Family:
        return Family("default_pg", 0, np.arange(self.size, dtype=np.int64)[None, :])

    @cached_property
    def tp_groups(self) -> Family:
        return Family("tp", 1, self._grid.reshape(-1, self.tp))

    @cached_property
    def dp_groups(self) -> Family:
        return Family("dp", 1 + self.size, self._grid.transpose(0, 2, 1).reshape(-1, self.dp))

    @cached_property
    def pp_groups(self) -> Family:
        return Family("pp", 1 + 2 * self.size, self._grid.transpose(1, 2, 0).reshape(-1, self.pp))


# The layouts by number of ranks that tests and the evaluation use.
LAYOUTS = {
    2: Layout(dp=2),
    4: Layout(dp=2, tp=2),
    8: Layout(dp=2, tp=2, pp=2),
    64: Layout(dp=8, tp=4, pp=2),
    512: Layout(dp=32, tp=8, pp=2),
}
STAGED_LAYOUTS = LAYOUTS | {2: Layout(pp=2), 4: Layout(dp=2, pp=2)}
