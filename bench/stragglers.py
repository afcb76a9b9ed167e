"""`annotq stragglers` on a job of 1,024 ranks: time and memory of the whole command."""

from __future__ import annotations

import sys
from pathlib import Path

from measure import run, spread
from section import Section, megabytes

ANNOTQ = Path(sys.executable).with_name("annotq")
COMMANDS = (("stragglers",), ("stragglers", "--format", "json"))


def measure(store: Path, repeats: int) -> Section:
    """Every command in rounds of its own; memory in a round before, because sampling takes time."""
    rows = [("command", "seconds: median (min to max)", "peak memory")]
    for words in COMMANDS:
        command = [ANNOTQ, *words, "--db", store]
        peak = run(command, sample=True).peak_bytes
        seconds = [run(command, sample=False).seconds for _ in range(repeats)]
        rows.append((f"annotq {' '.join(words)}", spread(seconds, 1), megabytes(peak)))
    what = (
        "1,024 ranks, 20 steps of 2,700 kernels: 55.3 million kernels, 4.1 million of them collectives of 8 ranks; "
        "one rank is 1.3 times slower in 50 of the 101 regions. The whole command, start to exit."
    )
    return Section("Straggler report of 1,024 ranks", what, rows)
