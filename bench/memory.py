"""Peak memory of `annotq ingest` on a trace of 2 GB."""

from __future__ import annotations

from pathlib import Path

from ingest import ingest
from section import Section, megabytes


def measure(trace: Path) -> Section:
    """One run; the peak is that of the whole process tree."""
    one = ingest(trace, sample=True)
    size = trace.stat().st_size
    rows = [
        ("trace", "seconds", "read per second", "peak memory"),
        (megabytes(size), f"{one.seconds:.1f}", megabytes(size / one.seconds), megabytes(one.peak_bytes)),
    ]
    return Section("Memory", "`annotq ingest` of a large plain JSON trace into a new store.", rows)
