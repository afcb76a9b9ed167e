"""What the live path adds to views and `annotq status`: agents, registered ranks, and jobs that never touch a GPU."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from jobs import load, rows
from traces import BASE_NS, Event, annotation, kernel, launch, step, write_trace
from typer.testing import CliRunner

from annotq.cli.main import app
from annotq.cli.options import chosen_place, default_store
from annotq.collector.store import Store

US = 1_000


def cpu_window(begin_us: float, durations_us: list[float], first_step: int = 0) -> list[Event]:
    """Profiler steps of 100 us, each with one pass through "mlp" on the host."""
    events = []
    for number, duration in enumerate(durations_us):
        begin = begin_us + 100 * number
        events += [step(first_step + number, begin, 100), annotation("mlp", begin + 5, duration)]
    return events


@pytest.fixture
def cpu_job(tmp_path: Path) -> Path:
    """Job "cpu": rank 1 takes 30 us for an mlp, rank 0 takes 10."""
    for rank, duration in enumerate((10, 30)):
        window = cpu_window(1000, [duration, duration])
        write_trace(tmp_path / f"rank{rank}.json", window, rank=rank, world_size=2, host_name="node-a")
    load(tmp_path / "store.duckdb", tmp_path, job="cpu")
    return tmp_path / "store.duckdb"


def register(store: Path, rank: int, *, job: str = "live", **columns: object) -> None:
    """A process as an agent reports it; columns: further ones of the table process."""
    facts = {"process_id": 100 + rank, "job": job, "attempt": 0, "rank": rank, "world_size": 4, "host": "node-a"}
    facts |= {"pid": 500 + rank, "process_key": f"key{rank}", "start_ns": BASE_NS, **columns}
    with Store(store) as opened:
        names, marks = ", ".join(facts), ", ".join("?" * len(facts))
        opened.connection.execute(f"INSERT INTO process ({names}) VALUES ({marks})", list(facts.values()))


def test_a_job_on_cpus_has_steps_without_gpu_work(cpu_job: Path) -> None:
    found = rows(
        cpu_job, "SELECT step, duration_ns, kernels, host_start_ns, host_duration_ns FROM steps WHERE rank = 1"
    )
    assert sorted(found) == [
        (0, None, 0, BASE_NS + 1_000_000, 100 * US),
        (1, None, 0, BASE_NS + 1_100_000, 100 * US),
    ]
    assert rows(cpu_job, "SELECT ranks_seen, ranks_expected, steps, gpu_events FROM jobs") == [(2, 2, 2, 0)]
    columns = "rank, traces, steps, gpu_events, busy_ns, median_step_ns, median_host_step_ns"
    assert rows(cpu_job, f"SELECT {columns} FROM ranks ORDER BY rank") == [
        (0, 1, 2, 0, 0, None, 100 * US),
        (1, 1, 2, 0, 0, None, 100 * US),
    ]


def test_windows_of_a_cpu_job_that_use_the_same_numbers_go_on_counting(tmp_path: Path) -> None:
    for window, begin in enumerate((1000, 50_000)):
        write_trace(tmp_path / f"rank0.w{window}.json", cpu_window(begin, [10, 10]), rank=0)
    load(tmp_path / "store.duckdb", tmp_path, job="cpu")
    found = rows(tmp_path / "store.duckdb", "SELECT step, host_start_ns, host_duration_ns FROM steps ORDER BY step")
    starts = [BASE_NS + begin * US for begin in (1000, 1100, 50_000, 50_100)]
    assert found == [(step, start, 100 * US) for step, start in enumerate(starts)]


def test_regions_on_the_host_are_compared_between_ranks(cpu_job: Path) -> None:
    columns = "rank, region, instances, median_ns, total_ns, ratio"
    assert rows(cpu_job, f"SELECT {columns} FROM host_regions ORDER BY rank") == [
        (0, "mlp", 2, 10 * US, 20 * US, 0.5),
        (1, "mlp", 2, 30 * US, 60 * US, 1.5),
    ]


def test_a_step_with_gpu_work_knows_its_time_on_the_host(tmp_path: Path) -> None:
    # Step 1 launches nothing: a rank that has GPU work keeps to the steps that have some.
    events = [step(0, 1000, 40), launch(1010, correlation=1), kernel("k", 1200, 10, correlation=1), step(1, 1040, 5)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path / "rank0.json")
    found = rows(tmp_path / "store.duckdb", "SELECT step, duration_ns, host_start_ns, host_duration_ns FROM steps")
    assert found == [(0, 10 * US, BASE_NS + 1_000_000, 40 * US)]


def test_host_times_are_on_the_common_clock(cpu_job: Path) -> None:
    with Store(cpu_job) as store:
        store.connection.execute("UPDATE clock SET offset_ns = 7, drift_ppb = 1000, reference_ns = ?", [BASE_NS])
    # 1 ms after the reference a drift of 1,000 ppb is 1 ns.
    found = rows(cpu_job, "SELECT min(host_start_ns) FROM steps")
    assert found == [(BASE_NS + 1_000_000 + 7 + 1,)]


def test_a_trace_that_is_still_arriving_is_in_no_view(cpu_job: Path) -> None:
    with Store(cpu_job) as store:
        store.connection.execute("UPDATE trace SET status = 'arriving' WHERE rank = 1")
    for view in ("steps", "ranks", "host_regions"):
        assert rows(cpu_job, f"SELECT DISTINCT rank FROM {view}") == [(0,)], view
    assert rows(cpu_job, "SELECT ranks_seen, traces FROM jobs") == [(1, 1)]


def test_agents_say_how_each_process_is(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    register(store, 0)
    register(store, 1, gpu="H200", local_rank=1, annotation_ids="cupti")
    register(store, 2, end_ns=BASE_NS + 9, ended="stopped")
    register(store, 3, ended="gone")
    with Store(store) as opened:
        beat = "INSERT INTO heartbeat VALUES (?, ?, ?, ?, 7, 5000, 300, 1)"
        opened.connection.execute(beat, [101, BASE_NS + 5, BASE_NS + 6, True])
        opened.connection.execute("INSERT INTO agent_note VALUES (103, 1, 'lost a trace'), (103, 2, 'lost another')")
    found = rows(store, "SELECT rank, state, seen_ns, step, step_ns, dropped_traces, notes FROM agents ORDER BY rank")
    assert found == [
        (0, "running", None, None, None, None, 0),
        (1, "running", BASE_NS + 5, 7, 5000, 1, 0),
        (2, "stopped", None, None, None, None, 0),
        (3, "gone", None, None, None, None, 2),
    ]
    assert rows(store, "SELECT gpu, local_rank, annotation_ids, spooled_bytes FROM agents WHERE rank = 1") == [
        ("H200", 1, "cupti", 300)
    ]


def test_a_process_that_is_over_while_its_files_are_on_their_way_is_ending(tmp_path: Path) -> None:
    register(tmp_path / "store.duckdb", 0)
    with Store(tmp_path / "store.duckdb") as store:
        store.connection.execute("INSERT INTO heartbeat VALUES (100, 5, 6, FALSE, NULL, NULL, 0, 0)")
    assert rows(tmp_path / "store.duckdb", "SELECT state FROM agents") == [("ending",)]


def test_jobs_count_registered_ranks_apart_from_those_with_a_trace(cpu_job: Path) -> None:
    register(cpu_job, 0)
    register(cpu_job, 2)
    columns = "job, ranks_registered, ranks_seen, ranks_expected"
    assert rows(cpu_job, f"SELECT {columns} FROM jobs ORDER BY job") == [("cpu", 0, 2, 2), ("live", 2, 0, 4)]
    assert rows(cpu_job, "SELECT job, rank FROM agents ORDER BY rank") == [("live", 0), ("live", 2)]


def status(store: Path, *arguments: str) -> list[tuple[str, str, str]]:
    done = CliRunner().invoke(app, ["status", "--db", str(store), "--format", "json", *arguments])
    assert done.exit_code == 0, done.stderr
    return [(row["topic"], row["item"], row["value"]) for row in json.loads(done.stdout)]


def test_status_names_the_silent_the_dead_and_the_missing(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    for rank in (0, 1, 2):
        register(store, rank, ended="gone" if rank == 2 else None)
    now = time.time_ns()
    with Store(store) as opened:
        beat = "INSERT INTO heartbeat VALUES (?, ?, ?, TRUE, 12, 5000, 0, 0)"
        for process, age_s in ((100, 1), (101, 41), (102, 41)):
            opened.connection.execute(beat, [process, now - age_s * 1_000_000_000, now])
        opened.connection.execute("INSERT INTO agent_note VALUES (102, 1, 'gave up a trace for space')")
        opened.connection.execute("INSERT INTO rejected_batch VALUES (100, 7, 'gpu_events', 'null', 'column name', 9)")
    found = status(store)
    assert (
        "agents",
        "live",
        "attempt 0: 3 of 4 ranks registered (missing: 3), 2 running, 1 of them silent, 1 gone",
    ) in found
    silent = [row for row in found if row[0] == "silent"]
    assert len(silent) == 1
    # A loaded machine may take a while between the two lines.
    assert re.fullmatch(r"rank 1 silent for 4\d s \(host node-a, step 12\)", silent[0][2]), silent
    assert ("gone", "live attempt 0", "rank 2 died without a word (host node-a, step 12)") in found
    assert ("agent note", "live attempt 0", "rank 2: gave up a trace for space") in found
    assert ("refused batch", "live attempt 0", "rank 0: gpu_events: null, column name") in found


def test_status_of_one_job_leaves_the_others_out(cpu_job: Path) -> None:
    register(cpu_job, 0)
    assert {item for topic, item, _ in status(cpu_job) if topic in ("job", "agents")} == {"cpu", "live"}
    assert {item for topic, item, _ in status(cpu_job, "--job", "cpu") if topic in ("job", "agents")} == {"cpu"}


def test_file_and_collector_exclude_each_other(cpu_job: Path) -> None:
    done = CliRunner().invoke(app, ["jobs", "--db", str(cpu_job), "--endpoint", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--db and --endpoint exclude each other" in done.stderr


@pytest.mark.parametrize(
    ("db", "endpoint", "environ", "place"),
    [
        ("a.duckdb", None, {"ANNOTQ_ENDPOINT": "h:1", "ANNOTQ_DB": "b.duckdb"}, Path("a.duckdb")),
        (None, "h:1", {"ANNOTQ_DB": "b.duckdb"}, "h:1"),
        (None, None, {"ANNOTQ_ENDPOINT": "h:1", "ANNOTQ_DB": "b.duckdb"}, Path("b.duckdb")),
        (None, None, {"ANNOTQ_ENDPOINT": "h:1"}, "h:1"),
        (None, None, {}, default_store()),
    ],
)
def test_what_is_asked_by_default(
    db: str | None, endpoint: str | None, environ: dict[str, str], place: Path | str
) -> None:
    assert chosen_place(Path(db) if db else None, endpoint, environ) == place
