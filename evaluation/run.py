"""Measures the verdicts on simulated jobs with known truth and writes docs/evaluation.md.

    python evaluation/run.py --seed 1 [--jobs 1.0] [--only PART...] [--resume] [--processes 2]

With --only, the sections of these parts are replaced in the page and the others stay. Every section is written when it is
done, and --resume leaves out those that the page has of these seeds and that number of jobs. Limits are tuned with --seed 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import alarms
import clock_recovery
import combined
import detection
import intervals
import others
import variants
from page import Section, section_texts, write_page
from pool import use_processes
from sample import Sample

PAGE = Path(__file__).parents[1] / "docs/evaluation.md"

PARTS: dict[str, tuple[str, Callable[[Sample], Section]]] = {
    **{cause: (detection.title_of(cause), partial(detection.by_size, cause)) for cause in detection.CAUSES},
    "steps": ("Steps", detection.by_steps),
    "since": (combined.SINCE, combined.since_when),
    "several": (combined.SEVERAL, combined.several),
    "alarms": ("False alarms", alarms.false_alarms),
    "intervals": ("Intervals", intervals.coverage),
    "variants": (variants.TITLE, variants.variants),
    "clocks": (clock_recovery.TITLE, clock_recovery.recovery),
    "others": (others.TITLE, others.comparison),
}

INTRODUCTION = """# How often the verdict is right

Written by `make evaluate` (`python evaluation/run.py`; `--only` replaces single sections, `--jobs` multiplies the jobs of every
cell, `--seed` takes other seeds). Every job comes from a seed: `tests/simulated_job.py` runs a model cut over dp x tp x pp ranks,
with collectives that end together, noise, and the causes put in, and `straggler_report` judges what lands in the store. The
limits in the code were chosen with jobs of this generator in view: real jobs whose noise is of another kind can do worse. They
are tuned with seeds of series 0 (`--seed 0`); each section says whether its own were held out from that. When a limit is
changed because of what a table shows, the next table takes the next series.

Unless a section says otherwise: 2 layers a stage, each with attention and MLP, forward and backward; a pass through a region
scatters by 5 % (log-normal), independently; constant differences of 1 % between ranks, which come on top of the size that is
put in; transfers scatter by 5 %. Layouts (dp x tp x pp): 2 x 1 x 1, 2 x 2 x 1, 2 x 2 x 2, 8 x 4 x 2, 32 x 8 x 2; 8 ranks a host.

A cell reads *found / right rank / right cause / wrong rank*, each in per cent of the jobs: something was reported that points
at the truth; exactly the true ranks are blamed (nobody, where the cause blames nobody); every cause is named for its ranks;
a rank is blamed that has nothing wrong with it. An effect below 5 % is not reported by design, so the row of 2 % should be
empty.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=float, default=1.0, help="multiplies the number of jobs of every cell")
    parser.add_argument(
        "--seed", type=int, required=True, help="series of seeds; 0 is for tuning, the page takes another"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="replace only these sections")
    parser.add_argument("--resume", action="store_true", help="leave out sections that the page has of the same jobs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=PAGE, help="another page")
    options = parser.parse_args()
    use_processes(options.processes)
    sample = Sample(options.jobs, options.seed)
    done = section_texts(options.out) if options.resume else {}
    for name in options.only:
        title, make = PARTS[name]
        if sample.text in done.get(title, ""):
            print(f"{name}: done before", file=sys.stderr)
            continue
        print(f"{name}:", file=sys.stderr)
        started = time.monotonic()
        made = make(sample)
        section = replace(made, text=f"{made.text.strip()}\n\n{sample.text}")
        print(section.markdown(), flush=True)
        print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr)
        # After each, so that an interrupted run keeps what it has.
        write_page(options.out, INTRODUCTION, [section], [title for title, _ in PARTS.values()])


if __name__ == "__main__":
    main()
