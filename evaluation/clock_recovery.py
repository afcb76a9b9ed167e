"""How well the clocks of hosts are recovered from the ends of collectives, when nothing else is known about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from page import Section, percent
from pool import each, store
from sample import Sample
from simulated_events import BEGIN_NS, Clocks
from simulated_job import HostClocks, Plan, SimulatedJob, simulate
from simulated_layout import Layout
from simulated_noise import KINDS, Noise
from simulated_program import Workload
from simulated_store import host_name

CONNECTED = Workload(eager=True)
LAYOUTS = {
    "4 ranks on 4 hosts": (Layout(dp=4, ranks_per_host=1), CONNECTED),
    "2 x 2 x 2 ranks on 4 hosts": (Layout(dp=2, tp=2, pp=2, ranks_per_host=2), CONNECTED),
    "the same without a collective of all ranks": (Layout(dp=2, tp=2, pp=2, ranks_per_host=2), Workload()),
    "8 x 4 x 2 ranks on 8 hosts": (Layout(dp=8, tp=4, pp=2), CONNECTED),
}
STEPS = (3, 20, 200)
NOISE = {
    "log-normal": Noise(),
    "all of them": KINDS["all of them"],
    "collectives left 3 us apart": Noise(jitter_ns=3_000),
}
OFFSET_NS, DRIFT_PPB = 120_000_000_000, 50_000
JOBS = 8
TITLE = "Clocks"

CLOCK = "SELECT host, offset_ns, drift_ppb, reference_ns, error_ns FROM clock WHERE job = ? ORDER BY host"


@dataclass(frozen=True)
class Recovered:
    """One host against the first: the largest error over the window in ns, and the bound given for it (None: refused)."""

    error_ns: float
    bound_ns: float | None


def recovery(sample: Sample) -> Section:
    """A table of layouts and noise by steps."""
    cells = [(layout, noise, steps) for layout in LAYOUTS for noise in NOISE for steps in STEPS]
    jobs = sample.count(JOBS)
    plans = [_plan(*cell, seed, sample) for cell in cells for seed in range(jobs)]
    answers = iter(list(each(recovered, plans)))
    found = {cell: [host for _ in range(jobs) for host in next(answers)] for cell in cells}
    rows = [("layout, noise", *(f"{steps} steps" for steps in STEPS))]
    for layout in LAYOUTS:
        for noise in NOISE:
            rows.append((f"{layout}, {noise}", *(_cell(found[layout, noise, steps]) for steps in STEPS)))
    every = [host for hosts in found.values() for host in hosts]
    given = [host for host in every if host.bound_ns is not None]
    text = (
        f"{jobs} jobs a cell; hosts up to {OFFSET_NS // 10**9} s apart, each drifting up to {DRIFT_PPB // 1000} ppm, "
        "without any other measurement; stages of a pipeline share no collective but that of all ranks after each step, "
        "where there is one. A cell: per cent of the hosts with a clock / of those, with the true time within the "
        "bound at every moment of the window / largest error and bound, medians in us. "
        f"All cells: {percent(map(_holds, given))} % of {len(given)} hosts within the bound, {len(every) - len(given)} refused."
    )
    return Section(TITLE, text, rows)


def recovered(plan: Plan) -> list[Recovered]:
    """Every host but the first."""
    job = simulate(plan)
    memory = store()
    memory.hold(job)
    rows = {row["host"]: row for row in memory.ask(CLOCK, ["job"]).to_pylist()}
    errors = {host: _errors(job, host, rows[host_name(host)]) for host in range(plan.layout.hosts)}
    first, *others = range(plan.layout.hosts)
    bounds = {host: rows[host_name(host)]["error_ns"] for host in errors}
    return [
        Recovered(
            float(np.abs(errors[host] - errors[first]).max()),
            None if None in (bounds[host], bounds[first]) else max(bounds[host], bounds[first]),
        )
        for host in others
    ]


def _errors(job: SimulatedJob, host: int, row: dict[str, int]) -> NDArray[np.float64]:
    """Aligned time minus true time at the start and the end of the window, ns: straight lines are worst at an end."""
    ends = np.array([0, max(int(ran.end_ns.max()) for ran in job.ran)])
    rank = np.full(2, job.plan.layout.host_ranks(host)[0])
    shown = Clocks(job).shown(ends, rank)
    drifted = np.rint((shown - row["reference_ns"]) * (row["drift_ppb"] * 1e-9)).astype(np.int64)
    aligned = shown + row["offset_ns"] + drifted
    errors: NDArray[np.float64] = (aligned - BEGIN_NS - ends).astype(np.float64)
    return errors


def _plan(layout: str, noise: str, steps: int, seed: int, sample: Sample) -> Plan:
    number = 6_000_000 + 10_000 * list(LAYOUTS).index(layout) + 1000 * list(NOISE).index(noise) + steps + 300 * seed
    clocks = HostClocks(OFFSET_NS, DRIFT_PPB, known=False)
    placed, workload = LAYOUTS[layout]
    return Plan(sample.seed(number), placed, steps, workload, NOISE[noise], clocks=clocks)


def _holds(host: Recovered) -> bool:
    return host.bound_ns is not None and host.error_ns <= host.bound_ns


def _cell(hosts: list[Recovered]) -> str:
    given = [host for host in hosts if host.bound_ns is not None]
    if not given:
        return "0"
    error, bound = np.median([[host.error_ns, host.bound_ns] for host in given], axis=0) / 1000
    share = percent(host.bound_ns is not None for host in hosts)
    return f"{share} / {percent(map(_holds, given))} / {error:.2f}, {bound:.2f}"
