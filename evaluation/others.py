"""annotq beside HolisticTraceAnalysis and NVIDIA's relative scores, on the same jobs."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detection import placed
from kineto_export import export
from nvrx import named_by_gpu, named_by_section
from page import Section, percent
from pool import each, report_on
from sample import Sample
from simulated_causes import CauseName
from simulated_job import Plan, SimulatedJob, simulate
from simulated_layout import Layout
from simulated_noise import KINDS
from simulated_program import Workload
from verdicts import judge

HERE = Path(__file__).parent
HTA_PYTHON = HERE / ".venv-peers/bin/python"
# The one straggler that there is; HTA's own default of 2 always names a second rank.
HTA_CANDIDATES = 1
LAYOUTS = {"8 data-parallel ranks": Layout(dp=8), "2 x 2 x 2 ranks": Layout(dp=2, tp=2, pp=2)}
CAUSES: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch", "imbalance")
SIZES = (0.10, 0.30, 1.00)
JOBS = 10
BATCH = 10


@dataclass(frozen=True)
class Names:
    """The ranks that each of the four names in a job; truth: those that are to be named."""

    truth: frozenset[int]
    annotq: frozenset[int]
    gpu_score: frozenset[int]
    section_score: frozenset[int]
    hta: frozenset[int] = frozenset()


def comparison(sample: Sample) -> Section:
    """A table of causes by contestant: per cent of the jobs in which exactly the right ranks are named, and any wrong one."""
    if not HTA_PYTHON.exists():
        raise SystemExit("HolisticTraceAnalysis is not installed: make evaluation/.venv-peers/.installed")
    cells: dict[tuple[str, str], list[Plan]] = {}
    jobs = sample.count(JOBS)
    for title, layout in LAYOUTS.items():
        for kind in ("log-normal", "all of them"):
            cells[f"nothing wrong, noise {kind}", title] = [
                Plan(seed=sample.seed(3_000_000 + seed), layout=layout, noise=KINDS[kind]) for seed in range(jobs)
            ]
        for cause in CAUSES:
            for size in SIZES:
                cells[f"{cause} {size:.0%}", title] = [
                    _plan(cause, size, layout, sample.seed(3_100_000 + seed)) for seed in range(jobs)
                ]
    plans = [plan for planned in cells.values() for plan in planned]
    named = dict(zip(map(id, plans), _with_hta(plans, list(each(names, plans))), strict=True))
    rows: list[tuple[str, ...]] = [
        ("job", "ranks", "annotq", "relative GPU score", "relative section scores", "HolisticTraceAnalysis")
    ]
    for (what, title), planned in cells.items():
        found = [named[id(plan)] for plan in planned]
        answers = [[(one.truth, getattr(one, who)) for one in found] for who in CONTESTANTS]
        rows.append((what, title, *map(_cell, answers)))
    return Section(TITLE, TEXT.format(jobs=jobs), rows)


CONTESTANTS = ("annotq", "gpu_score", "section_score", "hta")
TITLE = "Beside others"
TEXT = """{jobs} jobs a row, 20 steps, noise of 5 %. A cell reads *exactly the right ranks are named / a wrong rank is named*, in
per cent of the jobs; where nobody is to be named, right is to name nobody.

- Relative scores: of NVIDIA's Resiliency Extension, by its formula and with its threshold of 0.75 (`evaluation/nvrx.py`). A
  rank is named by its GPU score, or by the score of any section, with a section for each region and phase.
- HolisticTraceAnalysis 0.5.0: `get_potential_stragglers(num_candidates=1)` on the jobs as Kineto traces, all clocks true. It
  names the rank whose last long collective begins latest, and always names one. Two things were done for it: pandas below 3,
  with which it reads graph launches, and collectives named `ncclKernel_...`, since it knows no other.
"""


def names(plan: Plan) -> Names:
    """Without HTA."""
    job = simulate(plan)
    outcome = judge(report_on(plan), plan)
    return Names(outcome.truth, outcome.blamed, named_by_gpu(job), named_by_section(job))


def _plan(cause: CauseName, size: float, layout: Layout, seed: int) -> Plan:
    put_in = placed(cause, size, layout, Workload(), seed, steps=20)
    return Plan(seed=seed, layout=layout, causes=(put_in,))


def _with_hta(plans: list[Plan], named: list[Names]) -> list[Names]:
    found: list[frozenset[int]] = []
    for first in range(0, len(plans), BATCH):
        found += _hta(map(simulate, plans[first : first + BATCH]))
    return [
        Names(one.truth, one.annotq, one.gpu_score, one.section_score, hta)
        for one, hta in zip(named, found, strict=True)
    ]


def _hta(jobs: Iterable[SimulatedJob]) -> list[frozenset[int]]:
    """What HTA names in each job. Raises RuntimeError when it fails on one."""
    with tempfile.TemporaryDirectory() as folder:
        places = [export(job, Path(folder) / str(number)) for number, job in enumerate(jobs)]
        command: list[str | Path] = [HTA_PYTHON, HERE / "peers/hta_stragglers.py", str(HTA_CANDIDATES), *places]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    failed = [answer["error"] for answer in answers if "error" in answer]
    if failed:
        raise RuntimeError(f"HolisticTraceAnalysis: {failed[0]}")
    return [frozenset(answer["ranks"]) for answer in answers]


def _cell(answers: list[tuple[frozenset[int], frozenset[int]]]) -> str:
    right = percent(named == truth for truth, named in answers)
    return f"{right} / {percent(bool(named - truth) for truth, named in answers)}"
