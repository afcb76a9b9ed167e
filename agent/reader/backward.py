"""Which region eager backward work belongs to: that of the forward operator whose gradient it computes.

Kineto draws an arrow ("fwdbwd") from each forward operator to its backward one. Autograd runs these one after the other on
threads of its own, where no annotation of the user is open: work launched there belongs to the arrow that ended last on its
thread. The adding up of a gradient, which has no arrow, follows directly on the operator that computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.launches import Spans
from annotq.agent.reader.trace_events import HostColumns


@dataclass(frozen=True)
class LinkColumns:
    """n ends of arrows; int64 arrays [n]: where, which arrow, and whether it begins there (1, forward) or ends (0)."""

    start_ns: Int64s
    thread: Int64s
    arrow: Int64s
    begins: Int64s


def forward_regions(links: LinkColumns, regions: Spans, launches: HostColumns) -> Int64s:
    """Return for each launch [n] the position of the annotation around its forward operator; -1: none, or not backward."""
    found = np.full(len(launches.start_ns), -1, np.int64)
    begins = links.begins == 1
    if not begins.any() or not len(regions.start_ns):
        return found
    arrows, first = np.unique(links.arrow[begins], return_index=True)
    around = regions.innermost(links.start_ns[begins][first], links.thread[begins][first])
    for thread in np.setdiff1d(links.thread[~begins], links.thread[begins]).tolist():
        ends = np.flatnonzero(~begins & (links.thread == thread))
        ends = ends[np.argsort(links.start_ns[ends], kind="stable")]
        mine = np.flatnonzero(launches.thread == thread)
        last = np.searchsorted(links.start_ns[ends], launches.start_ns[mine], side="right") - 1
        mine, last = mine[last >= 0], last[last >= 0]
        wanted = links.arrow[ends[last]]
        place = np.minimum(np.searchsorted(arrows, wanted), len(arrows) - 1)
        found[mine] = np.where(arrows[place] == wanted, around[place], -1)
    return found
