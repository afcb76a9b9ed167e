"""How many jobs the evaluation runs, and which ones."""

from __future__ import annotations

from dataclasses import dataclass

# Further apart than any two jobs of one series.
BETWEEN_SERIES = 100_000_000


@dataclass(frozen=True)
class Sample:
    """times: multiplies the jobs of every cell. series: of seeds. Limits in the code may be tuned with the jobs of one series
    only (0); the tables are to be made with another one, at which nobody looked before. When a limit is changed
    because of what such a table shows, its series has been seen, and the next table takes the next one."""

    times: float = 1.0
    series: int = 0

    def count(self, jobs: int) -> int:
        """Jobs of a cell, at least one."""
        return max(1, round(jobs * self.times))

    def seed(self, number: int) -> int:
        """The seed of the job with this number."""
        return self.series * BETWEEN_SERIES + number

    @property
    def text(self) -> str:
        """What a section says of its jobs."""
        seen = "with which the limits were tuned" if self.series == 0 else "that no tuning saw"
        return f"Seeds of series {self.series}, {seen}; jobs x {self.times:g}."
