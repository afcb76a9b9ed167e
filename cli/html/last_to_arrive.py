"""Collectives: who arrived last, how long the others waited, and how long the transfer itself takes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from markupsafe import Markup

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.rendering import render
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    from annotq.collector.waits import RankWait

ANCHOR, TITLE = "collectives", "Who arrived last"
KINDS_SHOWN, GROUPS_SHOWN, RANKS_SHOWN = 24, 3, 16
# How many ranks a line of the overview names.
LAST_NAMED = 3

RANK_WAITS = """SELECT name, region, phase, group_name, group_ranks, group_first_rank, rank,
    sum(collectives) AS collectives, sum(judged) AS judged, sum(last) AS last,
    median(wait_ns / judged) FILTER (WHERE judged > 0) AS wait_ns,
    median(transfer_ns / judged) FILTER (WHERE judged > 0) AS transfer_ns,
    median(wait_duration_ns / judged) FILTER (WHERE judged > 0) AS wait_duration_ns,
    median(transfer_duration_ns / judged) FILTER (WHERE judged > 0) AS transfer_duration_ns
FROM (
{}
)
GROUP BY name, region, phase, group_name, group_ranks, group_first_rank, rank
ORDER BY name, region, phase, group_name, group_first_rank, rank"""

KINDS = """SELECT name, region, phase, sum(last) AS judged, max(wait_ns) AS longest_wait_ns, median(wait_ns) AS wait_ns,
    median(transfer_ns) AS transfer_ns
FROM (
{}
)
WHERE judged > 0
GROUP BY name, region, phase
ORDER BY longest_wait_ns DESC"""


@dataclass(frozen=True)
class Kind:
    """One kind of collective over all its groups. judged: collectives; wait_ns, transfer_ns: median over the ranks; last: who was
    last most often."""

    title: str
    phase: str
    groups: int
    judged: int
    wait_ns: float
    longest_wait_ns: float
    longest_rank: int
    transfer_ns: float
    last: str


@dataclass(frozen=True)
class Group:
    """One kind of collective in one process group. rows: of its ranks, those shown; left_out: how many are not."""

    title: str
    phase: str
    judged: int
    rows: list[tuple[RankWait, Markup]]
    left_out: int


def figure(subject: Subject) -> Figure:
    from annotq.collector.explain import explain_waits
    from annotq.collector.waits import COLLECTIVE_STEPS

    waits = subject.verdict.waits
    about = (subject.job, subject.attempt) * 2
    queries = [Statement(RANK_WAITS.format(COLLECTIVE_STEPS), about)]
    kinds: dict[object, list[RankWait]] = {}
    for row in waits:
        if row.wait_ns is not None:
            kinds.setdefault(row.kind, []).append(row)
    if not kinds:
        why = " ".join(explain_waits(waits)) if waits else "No communication kernel was recorded."
        return without_data(ANCHOR, TITLE, subject.no_trace or f"There is no wait to show. {why}", queries)
    longest = sorted(kinds.values(), key=_longest)
    detailed = _detailed(longest, set(subject.named_ranks))
    overview = _overview(longest) if len(longest) > 1 else []
    several = len({row.group for rows in longest for row in rows}) > 1
    body = render(
        "last_to_arrive.html",
        kinds=overview[:KINDS_SHOWN],
        kinds_left_out=len(overview) - KINDS_SHOWN,
        groups=[_group(rows, several) for rows in detailed],
        left_out=len(longest) - len(detailed),
        notes=explain_waits([row for row in waits if row.kind not in kinds or row.judged < row.collectives])[-4:]
        if any(row.judged < row.collectives for row in waits)
        else [],
    )
    lead = (
        "Per collective: the mean of each step, then the median over the steps. The last rank to arrive waits for nobody "
        "and sees the transfer alone. By duration: the same without comparing clocks. Being last is not yet being slow: an "
        "earlier collective may have made the rank late."
    )
    if several:
        lead += " A group is written as its name, @ and its first rank."
    if overview:
        queries.append(Statement(KINDS.format(RANK_WAITS.format(COLLECTIVE_STEPS)), about))
    return Figure(ANCHOR, TITLE, lead, body, queries)


def _longest(rows: list[RankWait]) -> float:
    return -max(row.wait_ns or 0 for row in rows)


def _overview(groups: list[list[RankWait]]) -> list[Kind]:
    """The same collectives of all groups together, the longest wait first."""
    kinds: dict[tuple[str, str | None], list[RankWait]] = {}
    for rows in groups:
        kinds.setdefault((rows[0].title, rows[0].phase), []).extend(rows)
    return [_kind(rows) for rows in sorted(kinds.values(), key=_longest)]


def _kind(rows: list[RankWait]) -> Kind:
    longest = max(rows, key=lambda row: row.wait_ns or 0)
    # A rank may be in several of the groups.
    arrivals = {rank: _arrivals(rows, rank) for rank in sorted({row.rank for row in rows if row.last})}
    often = sorted(arrivals, key=lambda rank: -arrivals[rank][0])
    named = ", ".join(f"rank {rank} in {arrivals[rank][0]:,} of {arrivals[rank][1]:,}" for rank in often[:LAST_NAMED])
    left = len(often) - LAST_NAMED
    return Kind(
        title=rows[0].title,
        phase=rows[0].phase or "",
        groups=len({row.kind for row in rows}),
        judged=sum(row.last for row in rows),
        wait_ns=median(row.wait_ns for row in rows if row.wait_ns is not None),
        longest_wait_ns=longest.wait_ns or 0,
        longest_rank=longest.rank,
        transfer_ns=median(row.transfer_ns for row in rows if row.transfer_ns is not None),
        last=named + (f", and {left:,} other rank{'s' if left > 1 else ''}" if left > 0 else ""),
    )


def _arrivals(rows: list[RankWait], rank: int) -> tuple[int, int]:
    """How often a rank was last, and of how many."""
    own = [row for row in rows if row.rank == rank]
    return sum(row.last for row in own), sum(row.judged for row in own)


def _detailed(groups: list[list[RankWait]], named: set[int]) -> list[list[RankWait]]:
    """Few groups all of them. Else of each kind one, that of a rank which a finding names if there is one, then the others
    with the longest waits."""
    if len(groups) <= GROUPS_SHOWN:
        return groups
    kinds: dict[tuple[str, str | None], list[list[RankWait]]] = {}
    for rows in groups:
        kinds.setdefault((rows[0].title, rows[0].phase), []).append(rows)
    chosen = [min(of_kind, key=lambda rows: not any(row.rank in named for row in rows)) for of_kind in kinds.values()]
    chosen += [rows for rows in groups if not any(rows is one for one in chosen)][:GROUPS_SHOWN]
    return chosen[:GROUPS_SHOWN]


def _group(rows: list[RankWait], several: bool) -> Group:
    shown = rows
    most = max(row.wait_ns or 0 for row in rows) or 1
    if len(rows) > RANKS_SHOWN:
        often = sorted(rows, key=lambda row: -row.last)[: RANKS_SHOWN // 2]
        waiting = sorted(rows, key=lambda row: -(row.wait_ns or 0))[: RANKS_SHOWN // 2]
        kept = {row.rank for row in (*often, *waiting)}
        shown = [row for row in rows if row.rank in kept]
    title = rows[0].title + (f", group {rows[0].group}" if several else "")
    drawn = [(row, _bar(row, most)) for row in sorted(shown, key=lambda row: row.rank)]
    return Group(title, rows[0].phase or "", max(row.judged for row in rows), drawn, len(rows) - len(shown))


def _bar(row: RankWait, most: float) -> Markup:
    width = 100 * (row.wait_ns or 0) / most
    return Markup("<rect class=wait x='0' width='{:.2f}%' height='100%' />").format(width)
