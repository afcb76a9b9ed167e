"""How often somebody is blamed in jobs in which nothing is wrong."""

from __future__ import annotations

from page import Section, percent
from pool import verdicts
from sample import Sample
from simulated_job import Plan
from simulated_layout import LAYOUTS
from simulated_noise import KINDS
from simulated_program import Workload
from verdicts import Outcome

# By ranks, jobs of each kind of noise: 1,000 in all. --jobs multiplies them.
JOBS = {2: 60, 4: 60, 8: 50, 64: 20, 512: 10}
STEPS = (6, 12, 20, 50)


def false_alarms(sample: Sample) -> Section:
    """A table of noise by ranks: jobs with a finding that blames a rank, with verdict imbalance, with any other finding."""
    cells = [(kind, ranks, seed) for kind in KINDS for ranks in LAYOUTS for seed in range(sample.count(JOBS[ranks]))]
    outcomes = [outcome for _, outcome in verdicts(_plan(*cell, sample) for cell in cells)]
    found = list(zip(cells, outcomes, strict=True))
    rows = [("noise", *(f"{ranks} ranks" for ranks in LAYOUTS), "all")]
    for kind in KINDS:
        values = []
        for count in (*LAYOUTS, None):
            values.append(_cell([one for (name, ranks, _), one in found if name == kind and count in (ranks, None)]))
        rows.append((kind, *values))
    rows.append(
        ("all", *(_cell([one for (_, ranks, _), one in found if ranks == count]) for count in LAYOUTS), _cell(outcomes))
    )
    unsure = percent(one.verdict == "inconclusive" for one in outcomes)
    text = (
        f"{len(outcomes)} jobs of 6, 12, 20 or 50 steps without any cause. Each cell: per cent of the jobs with a finding that "
        f"blames a rank / with the verdict imbalance / with a finding stage or global. Inconclusive: {unsure} %."
    )
    return Section("False alarms", text, rows)


def _plan(kind: str, ranks: int, seed: int, sample: Sample) -> Plan:
    number = list(KINDS).index(kind)
    workload = Workload(eager=seed % 4 == 1, overlap=seed % 4 == 2, reduce="sharded" if seed % 4 == 2 else "all_reduce")
    return Plan(
        seed=sample.seed(1_000_000 + 10_000 * number + 100_000 * ranks + seed),
        layout=LAYOUTS[ranks],
        steps=STEPS[seed % len(STEPS)],
        noise=KINDS[kind],
        workload=workload,
    )


def _cell(outcomes: list[Outcome]) -> str:
    blamed = percent(one.wrong_rank for one in outcomes)
    uneven = percent(one.verdict == "imbalance" for one in outcomes)
    others = percent(any(named.cause in ("stage", "global") for named in one.named) for one in outcomes)
    return f"{blamed} / {uneven} / {others}"
