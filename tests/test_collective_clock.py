"""Clocks of hosts that nobody measured, found from the ends of the collectives that they share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import NCCL, load, rows
from simulated_events import BEGIN_NS, Clocks
from simulated_job import HostClocks, Plan, simulate
from simulated_layout import Layout
from simulated_store import MemoryStore
from traces import BASE_NS, kernel, launch, step, write_trace

from annotq.collector.collective_clock import Ends, HostClock, fit_clocks
from annotq.collector.receipt import receipt

SECOND = 1_000_000_000
BEGIN = 1_790_857_026 * SECOND
FAR_APART = HostClocks(offset_ns=180 * SECOND, drift_ppb=50_000, known=False)


class Hosts:
    """Hosts whose clocks are minutes apart and drift by up to 50 ppm, and what they show of collectives of a second."""

    def __init__(self, seed: int, count: int) -> None:
        self.random = np.random.default_rng(seed)
        self.offsets = self.random.integers(-300 * SECOND, 300 * SECOND, count)
        self.drifts = self.random.uniform(-50e-6, 50e-6, count)
        self.names = {host: f"node-{host}" for host in range(count)}

    def shows(self, host: int, moment: np.ndarray) -> np.ndarray:
        """The host's clock at true moments (ns since BEGIN)."""
        return BEGIN + moment + self.offsets[host] + np.rint(moment * self.drifts[host]).astype(np.int64)

    def ends(self, groups: list[tuple[int, ...]], steps: int, jitter_ns: float, seconds: float = 20) -> Ends:
        """One collective per group and step."""
        found = []
        for number in range(steps):
            for family, group in enumerate(groups):
                moment = round((number + (family + 1) / (len(groups) + 1)) * seconds / steps * SECOND)
                for host in group:
                    left = np.int64(moment + round(abs(self.random.normal()) * jitter_ns))
                    found.append((number * len(groups) + family, family, number, host, int(self.shows(host, left))))
        return Ends(*np.array(found, dtype=np.int64).T)

    def windows(self, seconds: float = 20) -> dict[int, tuple[int, int]]:
        edges = np.array([0, round(seconds * SECOND)])
        return {host: tuple(self.shows(host, edges).tolist()) for host in self.names}


def worst_error(hosts: Hosts, fit: dict[int, HostClock], seconds: float = 20) -> float:
    """The largest disagreement of two aligned hosts about one true moment, as a share of the larger reported error."""
    moments = np.linspace(0, seconds * SECOND, 41).astype(np.int64)
    aligned = {}
    for host, clock in fit.items():
        shown = hosts.shows(host, moments)
        aligned[host] = (
            shown + clock.offset_ns + np.rint((shown - clock.reference_ns) * (clock.drift_ppb / 1e9)).astype(np.int64)
        )
    return max(
        float(np.abs(aligned[one] - aligned[other]).max()) / max(fit[one].error_ns, fit[other].error_ns)
        for one in fit
        for other in fit
        if one < other
    )


@pytest.mark.parametrize("jitter_ns", [0, 2_000, 30_000])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_offsets_and_drifts_are_found_within_the_reported_error(count: int, jitter_ns: int) -> None:
    shares = []
    for seed in range(10):
        hosts = Hosts(seed, count)
        fit = fit_clocks(hosts.ends([tuple(range(count))] * 3, 20, jitter_ns), hosts.windows(), hosts.names)
        assert (sorted(fit.clocks), fit.objection) == (list(range(count)), "")
        assert max(clock.error_ns for clock in fit.clocks.values()) < 20 * jitter_ns + 100
        shares.append(worst_error(hosts, fit.clocks))
    assert max(shares) <= 1


def test_hosts_that_meet_only_through_others_are_aligned_along_the_chain() -> None:
    hosts = Hosts(1, 6)
    pairs = [(one, one + 1) for one in range(5)]
    fit = fit_clocks(hosts.ends(pairs, 20, 5_000), hosts.windows(), hosts.names)
    assert sorted(fit.clocks) == list(range(6))
    assert worst_error(hosts, fit.clocks) <= 1


def test_collectives_that_were_held_up_on_one_host_do_not_move_its_clock() -> None:
    hosts = Hosts(2, 3)
    ends = hosts.ends([(0, 1, 2)] * 3, 20, 5_000)
    held = (ends.host == 1) & (np.arange(len(ends.host)) % 7 == 1)
    assert held.sum() >= 5
    fit = fit_clocks(replace(ends, end_ns=ends.end_ns + 3_000_000 * held), hosts.windows(), hosts.names)
    assert fit.clocks[1].error_ns < 100_000
    assert worst_error(hosts, fit.clocks) <= 1


def test_a_clock_that_does_not_run_straight_has_a_larger_error() -> None:
    hosts = Hosts(3, 2)
    ends = hosts.ends([(0, 1)] * 3, 40, 2_000)
    straight = fit_clocks(ends, hosts.windows(), hosts.names).clocks[1].error_ns
    bent = 100_000 * np.sin(ends.step / 40 * 2 * np.pi) * (ends.host == 1)
    fit = fit_clocks(replace(ends, end_ns=ends.end_ns + bent.astype(np.int64)), hosts.windows(), hosts.names)
    assert fit.clocks[1].error_ns > 3 * straight


def test_families_that_disagree_about_a_host_make_its_error_larger() -> None:
    hosts = Hosts(4, 3)
    ends = hosts.ends([(0, 1, 2)] * 2, 20, 2_000)
    biased = replace(ends, end_ns=ends.end_ns + 50_000 * ((ends.host == 1) & (ends.family == 1)))
    fit = fit_clocks(biased, hosts.windows(), hosts.names)
    assert fit.clocks[1].error_ns > 25_000
    assert worst_error(hosts, fit.clocks) <= 1


def test_a_host_whose_collectives_scatter_like_steps_is_refused_and_the_others_are_not() -> None:
    # Host 2's steps are paired with the wrong ones: its ends are those of steps that vary by some per cent.
    hosts = Hosts(5, 4)
    ends = hosts.ends([(0, 1, 2, 3)] * 3, 20, 3_000)
    scatter = np.repeat(hosts.random.normal(scale=3_000_000, size=20), 12) * (ends.host == 2)
    fit = fit_clocks(replace(ends, end_ns=ends.end_ns + scatter.astype(np.int64)), hosts.windows(), hosts.names)
    assert sorted(fit.clocks) == [0, 1, 3]
    assert "node-2 (the ends of its collectives scatter by" in fit.objection
    assert worst_error(hosts, fit.clocks) <= 1


def test_too_few_collectives_and_hosts_without_a_common_one_are_named() -> None:
    hosts = Hosts(6, 5)
    ends = hosts.ends([(0, 1), (2, 3)], 20, 1_000)
    few = hosts.ends([(0, 4)], 3, 1_000)
    both = Ends(
        *(
            np.concatenate([getattr(ends, name), getattr(few, name) + (1000 if name == "collective" else 0)])
            for name in vars(ends)
        )
    )
    fit = fit_clocks(both, hosts.windows(), hosts.names)
    assert sorted(fit.clocks) == [0, 1]
    assert fit.objection == (
        "Not on the common clock: node-4 (fewer than 8 synchronizing collectives with other hosts). "
        "Not on the common clock: node-2, node-3 (no collective shared with the others)."
    )


def test_without_any_collective_nothing_is_aligned() -> None:
    hosts = Hosts(7, 2)
    nothing = Ends(*(np.zeros(0, dtype=np.int64) for _ in range(5)))
    fit = fit_clocks(nothing, hosts.windows(), hosts.names)
    assert fit.clocks == {}
    assert "node-0, node-1 (fewer than 8" in fit.objection


def test_hosts_decades_apart_are_aligned_to_the_nanosecond() -> None:
    hosts = Hosts(8, 2)
    hosts.offsets[1] = -BEGIN + 5 * SECOND  # its clock begins in 1970
    fit = fit_clocks(hosts.ends([(0, 1)] * 3, 20, 0), hosts.windows(), hosts.names)
    assert fit.clocks[1].error_ns < 100
    assert worst_error(hosts, fit.clocks) <= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", [Layout(dp=4, tp=2, ranks_per_host=2), Layout(dp=8, tp=2, ranks_per_host=8)])
def test_a_simulated_job_on_several_hosts_is_aligned_at_the_time_of_every_kernel(layout: Layout, seed: int) -> None:
    job = simulate(Plan(seed=seed, layout=layout, steps=12, clocks=FAR_APART))
    truth = Clocks(job)
    store = MemoryStore()
    store.hold(job)
    found = store.ask(
        """SELECT CAST(right(p.host, 3) AS BIGINT) AS host, k.start_ns, e.start_ns AS raw_ns, c.error_ns
           FROM _gpu_work AS k
           JOIN gpu_event AS e ON e.trace_id = k.trace_id AND e.node_index = k.node_index AND e.step = k.step
           JOIN process AS p ON p.process_id = k.process_id
           JOIN clock AS c ON c.job = p.job AND c.host = p.host WHERE c.method = 'collectives'""",
        [],
    )
    host, aligned, raw, error = (found.column(name).to_numpy() for name in ("host", "start_ns", "raw_ns", "error_ns"))
    assert len(host) > 1000 and len(np.unique(host)) == layout.hosts
    # What the clock of host 0, which is right, shows at the same moment.
    drift = 1 + truth.drifts_ppb[host] * 1e-9
    right = (raw - BEGIN_NS - truth.offsets_ns[host]) / drift
    off = np.abs((aligned - BEGIN_NS) - right)
    assert (off <= error).all()
    assert error.max() < 20_000


def test_waits_between_hosts_whose_clock_comes_from_collectives_are_taken_by_duration() -> None:
    store = MemoryStore()
    store.hold(simulate(Plan(seed=1, layout=Layout(dp=4, tp=2, ranks_per_host=2), steps=8, clocks=FAR_APART)))
    methods = store.ask(
        "SELECT DISTINCT one_host, method FROM _collective_waits ORDER BY one_host, method", []
    ).to_pylist()
    assert [(row["one_host"], row["method"]) for row in methods if row["method"] == "clock"] == [(True, "clock")]
    assert (False, "duration") in [(row["one_host"], row["method"]) for row in methods]
    # The formula by the clock stays a check: it differs by no more than the clock may be wrong.
    (check,) = store.ask(
        "SELECT max(abs(disagreement_ns)) AS apart, max(clock_error_ns) AS error FROM _collective_waits WHERE NOT one_host",
        [],
    ).to_pylist()
    assert check["apart"] < check["error"]


def test_stages_that_share_no_synchronizing_collective_are_named_in_the_receipt() -> None:
    store = MemoryStore()
    store.hold(simulate(Plan(seed=1, layout=Layout(dp=2, pp=2, ranks_per_host=2), steps=8, clocks=FAR_APART)))
    facts = receipt(store.ask, "job", 0)
    assert facts.clock_error_ns is None
    assert any(note.startswith("Not on the common clock: node-000, node-001") for note in facts.notes)


def host_traces(folder: Path, apart_ns: int, steps: range) -> Path:
    """Rank 0 on node-0, rank 1 on node-1 with a clock and a baseTimeNanoseconds that are `apart_ns` ahead."""
    for rank in (0, 1):
        events = []
        for number in steps:
            arrive = 1000.0 * (number + 1) + 40 * rank
            events += [
                step(number, arrive - 30, 25),
                launch(arrive - 10, correlation=number + 1),
                kernel(NCCL, arrive, 1000.0 * (number + 1) + 100 - arrive, correlation=number + 1),
            ]
        name = f"rank{rank}.w{steps.start}.json"
        write_trace(
            folder / name, events, rank=rank, world_size=2, host_name=f"node-{rank}", base_ns=BASE_NS + rank * apart_ns
        )
    return folder


def test_files_of_two_hosts_minutes_apart_are_aligned_when_they_are_loaded(tmp_path: Path) -> None:
    minutes = 200 * SECOND
    store = tmp_path / "store.duckdb"
    load(store, host_traces(tmp_path, minutes, range(12)), job="j")
    clocks = rows(store, "SELECT host, offset_ns, method, error_ns < 2000 FROM clock ORDER BY host")
    assert clocks == [("node-0", 0, "collectives", True), ("node-1", -minutes, "collectives", True)]
    assert rows(store, "SELECT DISTINCT rank, arrive_ns % 1000000 FROM collectives ORDER BY rank") == [
        (0, 0),
        (1, 40_000),
    ]
    # Their waits come from durations all the same: rank 0 waits 40 us.
    assert rows(store, "SELECT DISTINCT rank, wait_ns, disagreement_ns FROM collectives ORDER BY rank") == [
        (0, 40_000, 0),
        (1, 0, 0),
    ]


def test_another_window_is_fitted_together_with_the_first(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, host_traces(tmp_path, SECOND, range(4)), job="j")
    assert rows(store, "SELECT DISTINCT method, error_ns FROM clock") == [("none", None)]
    (note,) = rows(store, "SELECT note FROM clock_note")
    assert note == (
        "Not on the common clock: node-0, node-1 (fewer than 8 synchronizing collectives with other hosts).",
    )
    load(store, host_traces(tmp_path, SECOND, range(4, 12)), job="j")
    assert rows(store, "SELECT DISTINCT method FROM clock") == [("collectives",)]
    assert rows(store, "SELECT count(*) FROM clock_note") == [(0,)]
