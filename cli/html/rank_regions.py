"""Rank x region: where each rank is slower than the others, the worst region first."""

from __future__ import annotations

import numpy as np

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.heatmap import Heatmap, ratio_pane
from annotq.cli.html.region_ratios import NOTHING_COMPARED, TWO_RANKS, RegionRatios, region_ratios, statement
from annotq.cli.html.rendering import duration
from annotq.cli.html.subject import Subject

ANCHOR, TITLE = "rank-regions", "Ranks by region"
REGIONS_SHOWN, RANKS_SHOWN, WORST_RANKS = 40, 64, 24


def figure(subject: Subject) -> Figure:
    data = region_ratios(subject)
    queries = [statement(subject)]
    if not data.regions:
        return without_data(ANCHOR, TITLE, subject.no_trace or NOTHING_COMPARED, queries)
    places = _ranks_shown(data, subject.named_ranks)
    rows = min(REGIONS_SHOWN, len(data.regions))
    ratio, compute = data.ratio[:rows, places], data.compute_ns[:rows, places]
    names = [f"{region} {phase}" for region, phase in data.regions[:rows]]
    titles = [subject_title(subject, data.ranks[place]) for place in places]
    texts = [[duration(value) if value == value else "" for value in row] for row in compute.tolist()]
    panes = [
        ratio_pane("ratio", "Ratio", "ratio", ratio),
        ratio_pane("time", "Time", "time per step", ratio, texts),
    ]
    caption = (
        "Each region and phase"
        if rows == len(data.regions)
        else f"The {rows} of {len(data.regions)} regions with the highest ratio"
    )
    body = Heatmap("regions-map", caption, names, [str(data.ranks[place]) for place in places], "", "rank ",
                   "region / rank", panes,
                   column_titles=titles, long_names=True).html()  # fmt: skip
    lead = (
        "Median over the steps of the region's compute time over the ranks' median in the same step: the numbers of the "
        "findings. Communication is left out, it contains the wait for others."
    )
    if len(data.ranks) == 2:
        lead += TWO_RANKS
    if len(places) < len(data.ranks):
        lead += (
            f" Of {len(data.ranks):,} ranks these are the {len(places)} that the findings name or that are slowest in some "
            "region; the distribution below holds all."
        )
    return Figure(ANCHOR, TITLE, lead, body, queries)


def subject_title(subject: Subject, rank: int) -> str:
    host = subject.hosts.get(rank)
    return f"{rank} (host {host})" if host else str(rank)


def _ranks_shown(data: RegionRatios, named: list[int]) -> list[int]:
    """Places of the ranks, ascending."""
    if len(data.ranks) <= RANKS_SHOWN:
        return list(range(len(data.ranks)))
    place = {rank: number for number, rank in enumerate(data.ranks)}
    chosen = [place[rank] for rank in named if rank in place]
    highest = np.max(np.nan_to_num(data.ratio, nan=0.0), axis=0)
    chosen += np.argsort(-highest, kind="stable").tolist()
    return sorted(list(dict.fromkeys(chosen))[:WORST_RANKS])
