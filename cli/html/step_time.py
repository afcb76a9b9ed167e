"""Where a step's time goes on each rank: stacked bars whose parts add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.region_ratios import region_ratios
from annotq.cli.html.rendering import render
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement
from annotq.collector.views import load_views

ANCHOR, TITLE = "step-time", "Where a step's time goes"
# Of more ranks than this a choice is shown: cutting up the time of 1,024 ranks takes minutes.
RANKS_SHOWN, RANKS_CHOSEN = 64, 24

MEANS = """SELECT rank, count(*) AS steps, avg(period_ns) AS period_ns, avg(compute_ns) AS compute_ns,
    avg(exposed_transfer_ns) AS exposed_transfer_ns, avg(wait_ns) AS wait_ns, avg(launch_gap_ns) AS launch_gap_ns,
    avg(other_ns) AS other_ns"""

ALL_RANKS = f"""{MEANS}
FROM step_parts
WHERE job = ? AND attempt = ?
GROUP BY rank
ORDER BY rank"""


@dataclass(frozen=True)
class Part:
    """shade: its CSS class."""

    column: str
    shade: str
    title: str


PARTS = (
    Part("compute_ns", "compute", "Computing"),
    Part("exposed_transfer_ns", "transfer", "Transfer"),
    Part("wait_ns", "wait", "Wait"),
    Part("launch_gap_ns", "gap", "Launch gap"),
    Part("other_ns", "other", "Other"),
)


@dataclass(frozen=True)
class RankParts:
    """Means over the steps, in ns; parts: in the order of PARTS, they add up to period_ns."""

    rank: int
    steps: int
    period_ns: float
    parts: tuple[float, ...]


def figure(subject: Subject) -> Figure:
    ranks = subject.verdict.receipt.ranks_seen
    chosen = chosen_ranks(subject) if len(ranks) > RANKS_SHOWN else None
    query = statement(subject, chosen)
    rows = read(subject, query)
    if not rows:
        why = "No GPU work was launched in a step, so there is no step to cut up."
        return without_data(ANCHOR, TITLE, subject.no_trace or why, [query])
    longest = max(row.period_ns for row in rows)
    several = len({subject.hosts.get(row.rank) for row in rows}) > 1
    body = render(
        "step_time.html",
        rows=[(row, _bar(row, longest), subject.hosts.get(row.rank) or "" if several else None) for row in rows],
        parts=PARTS,
        several=several,
    )
    lead = (
        "Mean over the steps. Each moment counts once: computing; else transferring; else waiting for the last rank; else "
        "nothing has started yet (launch gap); else other (copies, idle in between). The parts add up to the step, from the "
        "end of the previous step's work to the end of its own."
    )
    if chosen:
        lead += (
            f" Of {len(ranks):,} ranks these are {len(chosen)}: those that the findings name, those that compute longest and "
            "shortest, and others at equal distances."
        )
    return Figure(ANCHOR, TITLE, lead, body, [query])


def statement(subject: Subject, chosen: list[int] | None) -> Statement:
    if chosen is None:
        return Statement(ALL_RANKS, (subject.job, subject.attempt))
    about = (subject.job, subject.attempt, *chosen)
    return Statement(_some_ranks(len(chosen)), (*about, *about))


def _some_ranks(count: int) -> str:
    return f"{MEANS}\nFROM (\n{step_parts_of(count)}\n)\nGROUP BY rank\nORDER BY rank"


def step_parts_of(count: int) -> str:
    """Of so many ranks; twice job, attempt and the ranks are its parameters.

    The view step_parts with the choice of ranks put where it reads: DuckDB carries it to one side of the join only, and cuts
    up the time of all ranks on the other."""
    (view,) = (view for view in load_views() if view.name == "step_parts")
    some = f"WHERE job = ? AND attempt = ? AND rank IN ({', '.join('?' * count)})"
    body = view.select
    for source in ("FROM _step_bounds AS b", "LEFT JOIN _step_segments AS s"):
        assert body.count(source) == 1, source
        words, name, alias = source.rpartition(" AS ")[0].rpartition(" ")[0], source.split()[-3], source.split()[-1]
        body = body.replace(source, f"{words} (SELECT * FROM {name} {some}) AS {alias}")
    return body


def read(subject: Subject, query: Statement) -> list[RankParts]:
    return [
        RankParts(row["rank"], row["steps"], row["period_ns"], tuple(float(row[part.column]) for part in PARTS))
        for row in subject.questions.rows(query).to_pylist()
        if row["period_ns"]
    ]


def chosen_ranks(subject: Subject) -> list[int]:
    """Ascending. Those that the findings name, those that compute longest and shortest, and others at equal distances."""
    seen = subject.verdict.receipt.ranks_seen
    known = set(seen)
    named = [rank for rank in subject.named_ranks if rank in known][:8]
    data = region_ratios(subject)
    total = np.nansum(data.compute_ns, axis=0) if data.regions else np.zeros(0)
    order = np.argsort(-total, kind="stable").tolist()
    extremes = [data.ranks[place] for place in [*order[:4], *order[-4:]] if data.ranks[place] in known]
    even = [seen[place] for place in np.linspace(0, len(seen) - 1, RANKS_CHOSEN).astype(int).tolist()]
    first = list(dict.fromkeys([*named, *extremes]))
    left = [rank for rank in even if rank not in first]
    every = max(1, -(-len(left) // max(1, RANKS_CHOSEN - len(first))))
    return sorted([*first, *left[::every]][:RANKS_CHOSEN])


def _bar(row: RankParts, longest: float) -> Markup:
    pieces, begin = [], 0.0
    for part, length in zip(PARTS, row.parts, strict=True):
        width = 100 * length / longest
        if width > 0:
            pieces.append(f"<rect class={part.shade} x='{begin:.2f}%' width='{width:.2f}%' height='100%' />")
        begin += width
    return Markup("".join(pieces))
