"""What of a job is drawn: ranks, steps, regions, a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.statement import Condition, equals, fits, one_of

UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}


@dataclass(frozen=True)
class Selection:
    """Work of one job attempt. None: no limit. Steps are inclusive, times in ns since the epoch on the common clock.

    Work is inside since_ns and until_ns when it overlaps them; nothing is cut.
    """

    job: str
    attempt: int
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, int] | None = None
    region: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def __str__(self) -> str:
        """The limits in words."""
        from annotq.collector.receipt import ranges

        first, last = self.steps or (None, None)
        limits = {
            "ranks": None if self.ranks is None else ranges(self.ranks),
            "steps": None if first is None else f"{first} to {last}",
            "regions": self.region,
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
        }
        return "; ".join(f"{name} {limit}" for name, limit in limits.items() if limit is not None) or "everything"

    def of_job(self) -> list[Condition | None]:
        """Conditions for rows of the job attempt and the chosen ranks."""
        return [equals("job", self.job), equals("attempt", self.attempt), one_of("rank", self.ranks)]

    def inside(self, start: str, end: str, region: bool = True) -> list[Condition | None]:
        """Conditions for rows of the chosen steps, regions and time; start and end are SQL, NULL an unknown end."""
        found: list[Condition | None] = []
        if self.steps is not None:
            found.append(Condition("step BETWEEN ? AND ?", self.steps))
        if region:
            found.append(fits("region", self.region))
        if self.since_ns is not None:
            found.append(Condition(f"({end} > ? OR {start} >= ?)", (self.since_ns, self.since_ns)))
        if self.until_ns is not None:
            found.append(Condition(f"{start} < ?", (self.until_ns,)))
        return found


@dataclass(frozen=True)
class Moment:
    """A time as given: absolute in ns since the epoch, or relative to the job's first GPU work."""

    ns: int
    relative: bool


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """12 or 12-20. Raises AnnotqError (usage)."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if found is None:
        raise AnnotqError(f"--step {text} is neither a step nor a range of steps.", "Such as 12 or 12-20.", EXIT_USAGE)
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise AnnotqError(f"--step {text} ends before it begins.", f"Such as {last}-{first}.", EXIT_USAGE)
    return first, last


def parse_moment(option: str, text: str | None) -> Moment | None:
    """1790857026000000000 (ns since the epoch) or 1.5s, 20ms after the first GPU work. Raises AnnotqError (usage)."""
    if text is None:
        return None
    found = re.fullmatch(r"(-?\d+)(?:\.(\d+))?\s*(ns|us|ms|s|min)?", text.strip())
    if found is None or (found[2] and not found[3]):
        raise AnnotqError(
            f"{option} {text} is no time.",
            "ns since the epoch as in start_ns, or the time after the job's first GPU work, such as 1.5s or 20ms.",
            EXIT_USAGE,
        )
    if not found[3]:
        return Moment(int(found[1]), relative=False)
    fraction = found[2] or ""
    sign = -1 if found[1].startswith("-") else 1
    # Not by float: a time in seconds with nine decimals is meant to the nanosecond.
    whole = int(found[1]) * UNITS[found[3]] + sign * int(fraction or 0) * UNITS[found[3]] // 10 ** len(fraction)
    return Moment(whole, relative=True)
