"""Pings between clocks that are off, drift, and have a jittery path between them: the truth lies within the reported error."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from jobs import load, rows
from scripted_collector import ScriptedCollector
from traces import kernel, write_trace

from annotq.agent.channel import Access, open_channel, stub_on
from annotq.agent.ping import burst
from annotq.collector.align import update_clocks
from annotq.collector.clock_fit import ClockFit, fit_clock
from annotq.collector.store import Store

START_NS = 1_790_857_026_000_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Host:
    """A simulated host: its clock's lead over the collector's is -offset at START and shrinks by the drift."""

    offset_ns: int  # to be added to its time at START
    drift_ppb: int = 0

    def clock(self, true_ns: int) -> int:
        """What its clock shows when the collector's shows true_ns."""
        passed = true_ns - START_NS
        return true_ns - self.offset_ns - round(passed * self.drift_ppb / 1e9)


@dataclass(frozen=True)
class Route:
    """The way to the collector: at least base_ns there and back_ns back (None: the same), plus log-normal jitter, `lopsided`
    times as much on the way back."""

    base_ns: int = 200_000
    back_ns: int | None = None
    jitter_ns: int = 100_000
    lopsided: float = 1.0

    def delays(self, random: Random) -> tuple[int, int]:
        there, back = (random.lognormvariate(0, 1.2) * self.jitter_ns for _ in range(2))
        return self.base_ns + round(there), (self.back_ns or self.base_ns) + round(back * self.lopsided)


def pings(host: Host, path: Route, seed: int, seconds: int = 600) -> np.ndarray:
    """Samples as the shipper takes them, 8 and then 2 every 10 s: rows sent, received, answered, returned."""
    random = Random(seed)
    moments = [START_NS + i * 20_000_000 for i in range(8)]
    moments += [START_NS + s * SECOND + i * 20_000_000 for s in range(10, seconds, 10) for i in range(2)]
    found = []
    for moment in moments:
        there, back = path.delays(random)
        answered = moment + there + random.randrange(50_000)
        found.append((host.clock(moment), moment + there, answered, host.clock(answered + back)))
    return np.array(found, np.int64).T


def fit(samples: np.ndarray, host: Host, first_s: float = 0, last_s: float = 600) -> ClockFit:
    first, last = (host.clock(START_NS + round(s * SECOND)) for s in (first_s, last_s))
    found = fit_clock(*samples, first, last)
    assert found is not None
    return found


def wrong_ns(found: ClockFit, host: Host, after_s: float) -> int:
    """By how much the fit misses the truth, `after_s` after START."""
    true_ns = START_NS + round(after_s * SECOND)
    local = host.clock(true_ns)
    return abs(local + found.offset_ns + round((local - found.reference_ns) * found.drift_ppb / 1e9) - true_ns)


HOSTS = [Host(-3 * SECOND, 20_000), Host(250_000_000, -20_000), Host(0), Host(5_000, 90_000)]
PATHS = [
    Route(),
    Route(lopsided=10),
    Route(jitter_ns=2_000_000, lopsided=0.1),
    Route(base_ns=20_000, back_ns=200_000, jitter_ns=5_000),
]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", HOSTS)
def test_the_truth_lies_within_the_reported_error(host: Host, path: Route, seed: int) -> None:
    found = fit(pings(host, path, seed), host)
    assert max(wrong_ns(found, host, after) for after in range(0, 601, 20)) <= found.error_ns


@pytest.mark.parametrize("lopsided", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_error_is_useful(lopsided: float, seed: int) -> None:
    host = Host(-3 * SECOND, 20_000)
    assert fit(pings(host, Route(lopsided=lopsided), seed), host).error_ns < 1_000_000


@pytest.mark.parametrize("seed", range(10))
def test_outside_of_the_samples_the_error_grows_and_still_holds(seed: int) -> None:
    host = Host(-3 * SECOND, 20_000)
    samples = pings(host, Route(lopsided=10), seed, seconds=60)
    near, far = fit(samples, host, 0, 50), fit(samples, host, -600, 1200)
    assert near.error_ns < far.error_ns
    assert max(wrong_ns(far, host, after) for after in (-600, 0, 50, 1200)) <= far.error_ns


@pytest.mark.parametrize("seed", range(10))
def test_a_single_burst_tells_no_drift_and_its_error_says_so(seed: int) -> None:
    host = Host(-3 * SECOND, 60_000)
    found = fit(pings(host, Route(), seed, seconds=10), host, 0, 8)
    assert found.drift_ppb == 0
    assert wrong_ns(found, host, 8) <= found.error_ns < 2_000_000


def test_a_clock_that_was_set_is_not_believed() -> None:
    before, after = Host(-3 * SECOND), Host(-2 * SECOND)
    samples = np.concatenate([pings(before, Route(), 1, 300), pings(after, Route(), 2, 600)[:, 64:]], axis=1)
    found = fit(samples, before)
    assert max(wrong_ns(found, before, 10), wrong_ns(found, after, 590)) <= found.error_ns
    assert found.error_ns > SECOND / 4


def test_without_a_usable_sample_there_is_no_fit() -> None:
    backwards = np.array([[100], [0], [0], [50]], np.int64)
    assert fit_clock(*backwards, 0, 1) is None
    assert fit_clock(*np.empty((4, 0), np.int64), 0, 1) is None


def add_samples(store: Store, host: str, samples: np.ndarray) -> None:
    values = ", ".join(f"('job', 0, '{host}', {', '.join(map(str, row))})" for row in samples.T.tolist())
    store.connection.execute(f"INSERT INTO clock_sample VALUES {values}")


@pytest.mark.parametrize("seed", range(3))
def test_kernels_of_two_hosts_come_out_at_their_true_times(tmp_path: Path, seed: int) -> None:
    """Through the store and its views: a kernel every minute on each of two hosts, at the same true time."""
    hosts = {"node-a": HOSTS[0], "node-b": HOSTS[1]}
    true_ns = [START_NS + minute * 60 * SECOND for minute in range(10)]
    store = tmp_path / "store.duckdb"
    for rank, (name, host) in enumerate(hosts.items()):
        base = host.clock(START_NS) - SECOND
        events = [kernel("gemm", (host.clock(moment) - base) / 1000) for moment in true_ns]
        trace = tmp_path / f"rank{rank}.json"
        load(store, write_trace(trace, events, rank=rank, base_ns=base, host_name=name), job="job")
    with Store(store) as opened:
        for i, (name, host) in enumerate(hosts.items()):
            add_samples(opened, name, pings(host, Route(lopsided=10 if i else 0.1), seed + 100 * i))
        update_clocks(opened.connection, "job", 0)
    error = dict(rows(store, "SELECT rank, clock_error_ns FROM coverage"))
    found = rows(store, "SELECT rank, start_ns FROM kernels ORDER BY rank, start_ns")
    assert len(found) == 20
    for i, (rank, start_ns) in enumerate(found):
        assert abs(start_ns - true_ns[i % 10]) <= error[rank] < 1_000_000
    assert rows(store, "SELECT DISTINCT method FROM clock") == [("ping",)]


def test_a_host_without_pings_has_no_known_error(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    for rank, name in enumerate(("node-a", "node-b")):
        load(store, write_trace(tmp_path / f"rank{rank}.json", [kernel("k", 1)], rank=rank, host_name=name), job="job")
    with Store(store) as opened:
        add_samples(opened, "node-b", np.array([[START_NS], [START_NS + 100], [START_NS + 100], [START_NS + 200]]))
        update_clocks(opened.connection, "job", 0)
    found = rows(store, "SELECT host, method, error_ns IS NULL FROM clock ORDER BY host")
    assert found == [("node-a", "none", True), ("node-b", "ping", False)]


def test_pings_over_grpc_recover_a_shifted_and_drifting_clock() -> None:
    """The shipper's own ping code against a server; true time is the server's."""
    began = time.time_ns()
    host = Host(250_000_000, 80_000)

    def shifted() -> int:
        true_ns = time.time_ns()
        return true_ns - host.offset_ns - round((true_ns - began) * host.drift_ppb / 1e9)

    with ScriptedCollector() as collector, open_channel(Access(collector.endpoint)) as channel:
        found = []
        for _ in range(10):
            found += burst(stub_on(channel), 3, shifted)
            time.sleep(0.1)
        last = shifted()
    samples = np.array([(s.sent_ns, s.received_ns, s.answered_ns, s.returned_ns) for s in found], np.int64).T
    fitted = fit_clock(*samples, int(samples[0][0]), last)
    assert fitted is not None
    true_ns = time.time_ns()
    local = true_ns - host.offset_ns - round((true_ns - began) * host.drift_ppb / 1e9)
    missed = local + fitted.offset_ns + round((local - fitted.reference_ns) * fitted.drift_ppb / 1e9) - true_ns
    assert abs(missed) <= fitted.error_ns < 20_000_000
