"""Rank x step: how long each rank computed in each step, and how long the step took, next to the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.heatmap import Grid, Heatmap, ratio_pane, time_pane
from annotq.cli.html.region_ratios import TWO_RANKS
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement

ANCHOR, TITLE = "steps", "Ranks, step by step"
# More ranks than this are shown by host, more steps in blocks.
RANKS_SHOWN, HOSTS_SHOWN, STEPS_SHOWN = 64, 64, 48
WORST_RANKS = 16

RANK_STEPS = """WITH step AS (
    SELECT rank, step, CASE WHEN kernels > 0 THEN compute_ns END AS compute_ns,
        coalesce(duration_ns, host_duration_ns) AS step_ns
    FROM steps
    WHERE job = ? AND attempt = ?
),
across AS (
    SELECT step, median(compute_ns) AS compute_ns, median(step_ns) AS step_ns
    FROM step
    GROUP BY step
)
SELECT s.rank, s.step,
    s.compute_ns, s.compute_ns / nullif(a.compute_ns, 0) AS compute_ratio,
    s.step_ns, s.step_ns / nullif(a.step_ns, 0) AS step_ratio
FROM step AS s
JOIN across AS a ON a.step = s.step
ORDER BY s.rank, s.step"""

DRIFT = "SELECT count(*) AS drifting FROM _traces WHERE job = ? AND attempt = ? AND drift_ppb <> 0"

MEASURES = ("compute_ratio", "compute_ns", "step_ratio", "step_ns")


@dataclass(frozen=True)
class RankSteps:
    """ranks, steps: their numbers, ascending. grids: by measure, shape (ranks, steps), NaN where there is none."""

    ranks: list[int]
    steps: list[int]
    grids: dict[str, Grid]

    @property
    def computes(self) -> bool:
        """Whether there is GPU work at all; a job on CPUs has only the host's steps."""
        return bool(np.isfinite(self.grids["compute_ns"]).any())


def statement(subject: Subject) -> Statement:
    return Statement(RANK_STEPS, (subject.job, subject.attempt))


def read(subject: Subject) -> RankSteps:
    """From what the straggler report has read already, where that is the same: on clocks that do not drift, with GPU work on
    every rank. Asking again takes seconds of a large job."""
    work = subject.verdict.comparison.work
    (row,) = subject.questions.ask(DRIFT, [subject.job, subject.attempt]).to_pylist()
    every_rank = set(subject.verdict.receipt.ranks_seen) == set(work.ranks.tolist())
    if row["drifting"] or not every_rank or np.isnan(work.end_ns[np.isfinite(work.start_ns)]).any():
        return asked(subject)
    step_ns = work.end_ns - work.start_ns
    grids = {
        "compute_ratio": _to_median(work.total_ns),
        "compute_ns": work.total_ns,
        "step_ratio": _to_median(step_ns),
        "step_ns": step_ns,
    }
    return RankSteps(work.ranks.tolist(), work.steps.tolist(), grids)


def _to_median(times: Grid) -> Grid:
    """Each over the ranks' median in its step; NaN where that is 0."""
    from annotq.collector.statistics import medians

    usual = medians(times, axis=0)
    return times / np.where(usual > 0, usual, np.nan)


def asked(subject: Subject) -> RankSteps:
    """The same from the store, with the steps of a host where no GPU work is."""
    table = subject.questions.rows(statement(subject))
    ranks, row = np.unique(table.column("rank").to_numpy(), return_inverse=True)
    steps, column = np.unique(table.column("step").to_numpy(), return_inverse=True)
    grids = {}
    for measure in MEASURES:
        grid = np.full((len(ranks), len(steps)), np.nan)
        grid[row, column] = table.column(measure).to_numpy(zero_copy_only=False).astype(np.float64)
        grids[measure] = grid
    return RankSteps(ranks.tolist(), steps.tolist(), grids)


def figure(subject: Subject) -> Figure:
    data, hosts = read(subject), subject.hosts
    queries = [statement(subject)]
    if not data.ranks:
        return without_data(
            ANCHOR,
            TITLE,
            subject.no_trace
            or "No step is known: the traces name none (no ProfilerStep, no annotq.agent.step(), no replay of a graph).",
            queries,
        )
    lead = (
        "Computing is everything but communication, so a slow rank shows there; the whole step, from its first work to its "
        "last, also contains the waits, which make all ranks equally slow. A ratio is to the ranks' median of the same step."
    )
    if not data.computes:
        lead = "There is no GPU work: these are the steps as the profiler saw them on the host. A ratio is to the ranks' median."
    if len(data.ranks) == 2:
        lead += TWO_RANKS
    columns, blocks = _columns(data.steps)
    note = (
        f" Each column is the worst of {blocks[0]} steps in a row, named after the first."
        if len(blocks) > 1 and blocks[0] > 1
        else ""
    )
    if len(data.ranks) <= RANKS_SHOWN:
        names, titles = rank_names(data.ranks, hosts)
        grids = {measure: _blocked(grid, blocks) for measure, grid in data.grids.items()}
        body = _map("map", "Each rank", names, titles, columns, grids, data.computes)
        return Figure(ANCHOR, TITLE, lead + note, body, queries)
    body = _large(data, hosts, columns, blocks)
    return Figure(ANCHOR, TITLE, lead + note, body, queries)


def rank_names(ranks: Sequence[int], hosts: dict[int, str | None]) -> tuple[list[str], list[str]]:
    """What the rows are called, with the host where there are several, and the same in full."""
    several = len({hosts.get(rank) for rank in ranks}) > 1
    titles = [f"{rank} · {hosts[rank]}" if hosts.get(rank) else str(rank) for rank in ranks]
    return (titles if several else [str(rank) for rank in ranks]), titles


def _columns(steps: list[int]) -> tuple[list[str], list[int]]:
    """Names of the columns and how many steps each holds."""
    size = -(-len(steps) // STEPS_SHOWN)
    groups = [steps[first : first + size] for first in range(0, len(steps), size)]
    names = [str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups]
    return names, [len(group) for group in groups]


def _blocked(grid: Grid, blocks: list[int]) -> Grid:
    """The largest of each block of columns; NaN where it holds none."""
    return _largest(grid, blocks, axis=1)


def _largest(grid: Grid, sizes: list[int], axis: int) -> Grid:
    edges = np.cumsum([0, *sizes[:-1]])
    lowest = np.fmax.reduceat(grid, edges, axis=axis)
    return np.asarray(lowest)


def _large(data: RankSteps, hosts: dict[int, str | None], columns: list[str], blocks: list[int]) -> Markup:
    """The worst ranks, then all by host, each with its worst rank."""
    from annotq.collector.statistics import medians

    groups = _groups(data.ranks, hosts)
    order = np.concatenate([places for _, places in groups])
    sizes = [len(places) for _, places in groups]
    grids = {measure: _largest(_blocked(grid, blocks)[order], sizes, axis=0) for measure, grid in data.grids.items()}
    measure = "compute_ratio" if data.computes else "step_ratio"
    kept = list(range(len(groups)))
    caption = f"{len(groups)} hosts, each by its worst rank"
    if len(groups) > HOSTS_SHOWN:
        worst = np.nanmax(np.nan_to_num(grids[measure], nan=0.0), axis=1)
        kept = sorted(np.argsort(-worst, kind="stable")[:HOSTS_SHOWN].tolist())
        caption = f"The {HOSTS_SHOWN} of {len(groups)} hosts with the highest ratio in any step, each by its worst rank"
    names = [groups[place][0] for place in kept]
    titles = [f"{groups[place][0]} (ranks {_span(data.ranks, groups[place][1])})" for place in kept]
    by_host = _map(
        "map", caption, names, titles, columns, {name: grid[kept] for name, grid in grids.items()}, data.computes,
        word="host ",
    )  # fmt: skip
    usual = np.nan_to_num(medians(data.grids[measure])[:, 0], nan=0.0)
    slowest = sorted(np.argsort(-usual, kind="stable")[:WORST_RANKS].tolist(), key=lambda place: -usual[place])
    ranks = [data.ranks[place] for place in slowest]
    names, titles = rank_names(ranks, hosts)
    grids = {name: _blocked(grid, blocks)[slowest] for name, grid in data.grids.items()}
    caption = f"The {len(ranks)} of {len(data.ranks):,} ranks with the highest median ratio"
    return _map("worst", caption, names, titles, columns, grids, data.computes) + by_host


def _groups(ranks: list[int], hosts: dict[int, str | None]) -> list[tuple[str, list[int]]]:
    """Hosts with the places of their ranks, in the order of their first rank; without hosts blocks of eight ranks."""
    found: dict[str, list[int]] = {}
    known = len({hosts.get(rank) for rank in ranks}) > 1
    for place, rank in enumerate(ranks):
        name = (hosts.get(rank) or "host not known") if known else f"ranks {rank // 8 * 8}-{rank // 8 * 8 + 7}"
        found.setdefault(name, []).append(place)
    return list(found.items())


def _span(ranks: list[int], places: list[int]) -> str:
    from annotq.collector.receipt import ranges

    return ranges(tuple(sorted(ranks[place] for place in places)))


def _map(
    name: str,
    caption: str,
    rows: list[str],
    titles: list[str],
    columns: list[str],
    grids: dict[str, Grid],
    computes: bool,
    word: str = "rank ",
) -> Markup:
    panes = [
        ratio_pane("step-ratio", "Step, ratio", "step ratio", grids["step_ratio"]),
        time_pane("step-time", "Step, time", "step", grids["step_ns"]),
    ]
    if computes:
        panes = [
            ratio_pane("compute-ratio", "Computing, ratio", "computing ratio", grids["compute_ratio"]),
            time_pane("compute-time", "Computing, time", "computing", grids["compute_ns"]),
            *panes,
        ]
    first = [steps.partition("-")[0] for steps in columns]
    return Heatmap(name, caption, rows, first, word, "step ", f"{word}/ step", panes, titles, columns).html()
