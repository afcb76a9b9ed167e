"""How a region's time is spread over the ranks: median, 99th percentile, the slowest, and every rank as a mark."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.heatmap import Grid
from annotq.cli.html.region_ratios import NOTHING_COMPARED, REGION_RATIOS, RegionRatios, region_ratios
from annotq.cli.html.rendering import TIMES, ratio, render
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement

ANCHOR, TITLE = "spread", "Regions across the ranks"
REGIONS_SHOWN = 40
# More ranks than this are drawn as a box, with the slowest ones as marks.
MARKS, FAR_MARKS = 64, 8
# As a finding needs.
FAR = 1.05

SPREAD = f"""SELECT region, phase, count(*) AS ranks, median(compute_ns) AS p50_ns,
    percentile_cont(0.99) WITHIN GROUP (ORDER BY compute_ns) AS p99_ns,
    max(compute_ns) / nullif(median(compute_ns), 0) AS skew, max_by(rank, compute_ns) AS slowest_rank
FROM (
{REGION_RATIOS}
)
GROUP BY region, phase
ORDER BY skew DESC"""


@dataclass(frozen=True)
class Spread:
    """One region and phase over all ranks that run it; skew: the slowest rank's time over the median."""

    region: str
    phase: str
    ranks: int
    p50_ns: float
    p99_ns: float
    skew: float
    slowest_rank: int


def figure(subject: Subject) -> Figure:
    data = region_ratios(subject)
    queries = [Statement(SPREAD, (subject.job, subject.attempt))]
    # Where most ranks take no time at all there is no multiple of their median.
    drawn = [place for place in range(len(data.regions)) if np.nanmedian(data.compute_ns[place]) > 0]
    if not drawn:
        return without_data(ANCHOR, TITLE, subject.no_trace or NOTHING_COMPARED, queries)
    spreads = {place: _spread(data, place) for place in drawn}
    order = sorted(drawn, key=lambda place: -spreads[place].skew)[:REGIONS_SHOWN]
    scale = Scale.over([data.compute_ns[place] / spreads[place].p50_ns for place in order])
    rows = [(spreads[place], _strip(data, place, spreads[place].p50_ns, scale)) for place in order]
    body = render("region_spread.html", rows=rows, axis=scale.axis(), grid=scale.ticks)
    marks = "every mark is a rank" if len(data.ranks) <= MARKS else (
        f"the box holds the middle half of the ranks, the line all from the 1st to the 99th percentile, marks are the "
        f"{FAR_MARKS} slowest"
    )  # fmt: skip
    lead = (
        f"Each rank by its median compute time a step, drawn as a multiple of the median of the ranks: {marks}, orange from "
        f"{FAR}{TIMES} on. p50 and p99 are over the ranks, skew is the slowest rank over p50."
    )
    if len(spreads) > len(order):
        lead += f" These are the {len(order)} of {len(spreads)} regions with the highest skew; the table at the end has all."
    return Figure(ANCHOR, TITLE, lead, body, queries)


def _spread(data: RegionRatios, place: int) -> Spread:
    times = data.compute_ns[place]
    known = times[np.isfinite(times)]
    middle = float(np.median(known))
    slowest = data.ranks[int(np.nanargmax(times))]
    region, phase = data.regions[place]
    p99 = float(np.percentile(known, 99))
    return Spread(region, phase, len(known), middle, p99, float(known.max()) / middle, slowest)


@dataclass(frozen=True)
class Scale:
    """From a multiple of the median to a share of the width (by logarithm, the same for all regions) and a place in %."""

    low: float
    high: float

    @classmethod
    def over(cls, multiples: list[Grid]) -> Scale:
        """At least 0.9 to 1.25, so that noise does not look like a difference."""
        known = np.concatenate([values[np.isfinite(values) & (values > 0)] for values in multiples])
        return cls(min(0.9, float(known.min()) / 1.03), max(1.25, float(known.max()) * 1.03))

    def share(self, multiple: float) -> float:
        return math.log(max(multiple, self.low) / self.low) / math.log(self.high / self.low)

    def place(self, multiple: float) -> str:
        return f"{100 * self.share(multiple):.2f}%"

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """(place, text): round multiples whose texts do not touch."""
        inside: list[float] = []
        for step in (
            1,
            2,
            10,
            100,
            1000,
            1.1,
            1.05,
            1.2,
            1.5,
            5,
            3,
            0.5,
            0.9,
            0.95,
            0.1,
            0.8,
            50,
            20,
            500,
            200,
            0.2,
            0.01,
            1.3,
            1.4,
            0.7,
            2.5,
            4,
        ):
            apart = all(abs(self.share(step) - self.share(other)) > 0.13 for other in inside)
            if self.low <= step <= self.high and apart:
                inside.append(step)
        return [(self.place(step), f"{step:g}{TIMES}") for step in sorted(inside)]

    def axis(self) -> Markup:
        texts = Markup("").join(
            Markup("<text x='{}' y='12' text-anchor='middle'>{}</text>").format(*tick) for tick in self.ticks
        )
        return Markup("<svg class='axis' aria-hidden='true'>{}</svg>").format(texts)


def _strip(data: RegionRatios, place: int, middle: float, scale: Scale) -> Markup:
    multiples = data.compute_ns[place] / middle
    known = [(rank, float(value)) for rank, value in zip(data.ranks, multiples, strict=True) if value == value]
    drawn = known
    parts = [f"<line class=grid x1='{at}' x2='{at}' y1='0' y2='100%' />" for at, _ in scale.ticks]
    if len(known) > MARKS:
        low, first, third, high = (
            float(value) for value in np.percentile([value for _, value in known], (1, 25, 75, 99))
        )
        ends, box = (scale.place(low), scale.place(high)), (scale.place(first), scale.place(third))
        width = float(box[1][:-1]) - float(box[0][:-1])
        parts.append(f"<line class=whisker x1='{ends[0]}' x2='{ends[1]}' y1='50%' y2='50%' />")
        parts.append(f"<rect class=box x='{box[0]}' width='{max(width, 0.2):.2f}%' y='20%' height='60%' />")
        drawn = sorted(known, key=lambda mark: -mark[1])[:FAR_MARKS]
    parts.append(f"<line class=middle x1='{scale.place(1)}' x2='{scale.place(1)}' y1='10%' y2='90%' />")
    for rank, multiple in sorted(drawn, key=lambda mark: mark[1]):
        far = multiple >= FAR
        mark = f"<circle class={'far' if far else 'dot'} cx='{scale.place(multiple)}' cy='50%' r='{4 if far else 3}'"
        parts.append(f"{mark}><title>rank {rank}: {ratio(multiple)}{TIMES}</title></circle>" if far else f"{mark} />")
    return Markup("".join(parts))
