"""Pictures of small jobs that are unlike the usual one: what overlaps, what is not known, what a file could not hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto_picture import Picture, Slice, draw, read_picture
from typer.testing import CliRunner, Result

from annotq.cli.commands import perfetto
from annotq.cli.main import app
from annotq.collector.store import Store

NOW = 1_790_857_026_000_000_000
Row = dict[str, Any]


def kernel(start: int, duration: int, name: str = "k", **columns: Any) -> Row:
    """A row of gpu_event, eager on rank 0 if not said otherwise; start is relative to NOW."""
    fixed = {"kind": "kernel", "device": 0, "stream": 7, "in_graph": False, "overrun": False, "communication": False}
    return {"rank": 0, "start_ns": NOW + start, "duration_ns": duration, "name": name, **fixed, **columns}


def node(start: int, duration: int, number: int, replay: int = 50, **columns: Any) -> Row:
    """A kernel of graph 3."""
    return kernel(start, duration, in_graph=True, graph_id=3, node_index=number, correlation_id=replay, **columns)


def store_of(path: Path, *kernels: Row, annotations: Sequence[Row] = (), processes: Sequence[Row] = ()) -> Path:
    """A store with job "odd": a process and a trace per rank; `processes` says more about some of them."""
    said = {process["rank"]: process for process in processes}
    with Store(path) as store:
        for rank in sorted({kernel["rank"] for kernel in kernels} | set(said)):
            process = {"process_id": rank + 1, "job": "odd", "attempt": 0, "rank": rank, "host": "a", "pid": 100 + rank}
            _insert(store, "process", {**process, **said.get(rank, {})})
            flags = {"encoding": "packed", "inferred": False, "step_source": "profiler", "step_offset": 0}
            counts = {"gpu_events": 1, "graph_events": 0, "dropped_events": 0, "overrun_events": 0}
            place = {"path": f"rank{rank}.json", "sha256": f"sha{rank}", "base_ns": 0, "status": "complete"}
            ids = {"trace_id": rank + 1, "process_id": rank + 1, "job": "odd", "attempt": 0, "rank": rank}
            _insert(store, "trace", {**ids, **flags, **counts, **place})
        for annotation in annotations:
            _insert(
                store,
                "annotation",
                {"process_id": 1, "graph_id": 3, "phase": "forward", "attributes": "{}", **annotation},
            )
        for row in kernels:
            _insert(store, "gpu_event", {"trace_id": row["rank"] + 1, "process_id": row["rank"] + 1, **row})
    return path


def _insert(store: Store, table: str, row: Row) -> None:
    columns = ", ".join(f"? AS {name}" for name in row)
    store.connection.execute(f"INSERT INTO {table} BY NAME SELECT {columns}", list(row.values()))


def drawn(store: Path, *options: str) -> tuple[Picture, str]:
    result = run(store, *options)
    assert result.exit_code == 0, result.stderr
    return read_picture(store.with_suffix(".pftrace")), result.stderr


def run(store: Path, *options: str) -> Result:
    return draw(store, store.with_suffix(".pftrace"), "odd", *options)


def times(slices: list[Slice]) -> list[tuple[int, int]]:
    """(start relative to NOW, duration), sorted."""
    return sorted((one.start - NOW, one.duration) for one in slices)


OVERLAPS = [(0, 100), (50, 100), (50, 10), (50, 0), (60, 30), (100, 50), (150, 0), (150, 0), (150, 1)]


def test_kernels_that_overlap_on_a_stream_keep_their_times(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", *(node(start, length, n) for n, (start, length) in enumerate(OVERLAPS)))
    picture, _ = drawn(store)
    kernels = picture.of("kernel")
    assert times(kernels) == sorted(OVERLAPS)
    assert not any(one.above for one in kernels)
    # 0-100, 50-150 and 50-60 run at once, and no other three more: at 50 the empty one is over before the others begin.
    assert len({one.track for one in kernels}) == 3
    assert picture.rows(0) == ["stream 7"]


def test_a_tangle_of_kernels_and_regions(tmp_path: Path) -> None:
    """Random branches of a graph on three streams, four replays that follow each other closely."""
    generator = np.random.default_rng(6)
    paths = ["a", "a > b", "a > b > c", "a > d", "e", None]
    annotations = [
        {"node_index": n, "region": path.split(" > ")[-1], "region_path": path, "phase": ("forward", "backward")[n % 2]}
        for n, path in enumerate(generator.choice(np.array(paths, object), 300))
        if path is not None
    ]
    kernels = [
        node(int(start) + 3_000 * replay, int(length), n, replay=replay, step=replay, stream=int(stream))
        for replay in range(4)
        for n, (start, length, stream) in enumerate(generator.integers((0, 0, 7), (3_000, 60, 10), (300, 3)))
    ]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *kernels, annotations=annotations))
    told = {annotation["node_index"]: annotation for annotation in annotations}
    expected = Counter((row["start_ns"], row["duration_ns"], row["stream"], row["node_index"]) for row in kernels)
    found: Counter[tuple[int, ...]] = Counter()
    for one in picture.of("kernel"):
        stream = int(picture.tracks[one.track].name.removeprefix("stream "))
        found[one.start, one.duration, stream, one.arguments["node_index"]] += 1
        about = told.get(one.arguments["node_index"], {})
        assert [above.arguments["region_path"] for above in one.above] == prefixes(about.get("region_path"))
        for above in one.above:
            assert above.category == "region" and above.end is not None and one.end is not None
            assert above.start <= one.start <= one.end <= above.end
            assert above.arguments["replay_id"] == one.arguments["correlation_id"]
            assert above.arguments["phase"] == about["phase"]
    assert found == expected
    inside = Counter(id(above) for one in picture.of("kernel") for above in one.above)
    assert {id(one): one.arguments["kernels"] for one in picture.of("region")} == inside
    assert picture.rows(0)[-3:] == ["stream 7", "stream 8", "stream 9"]


def prefixes(path: str | None) -> list[str]:
    names = path.split(" > ") if path else []
    return [" > ".join(names[: depth + 1]) for depth in range(len(names))]


def test_regions_that_overlap_on_a_stream_keep_their_times(tmp_path: Path) -> None:
    annotations = [{"node_index": n, "region": name, "region_path": f"step > {name}"} for n, name in enumerate("aabb")]
    kernels = [node(0, 100, 0), node(100, 50, 1), node(20, 100, 2), node(130, 100, 3)]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *kernels, annotations=annotations))
    assert times([one for one in picture.of("region") if one.name == "a"]) == [(0, 150)]
    assert times([one for one in picture.of("region") if one.name == "b"]) == [(20, 210)]
    assert times([one for one in picture.of("region") if one.name == "step"]) == [(0, 150), (20, 210)]


def test_a_region_that_is_left_and_entered_again_is_two_slices(tmp_path: Path) -> None:
    annotations = [
        {"node_index": 0, "region": "a", "region_path": "out > a"},
        {"node_index": 1, "region": "b", "region_path": "out > b"},
        {"node_index": 2, "region": "a", "region_path": "out > a"},
    ]
    kernels = [node(0, 10, 0), node(10, 10, 1), node(30, 10, 2)]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *kernels, annotations=annotations))
    assert times([one for one in picture.of("region") if one.name == "a"]) == [(0, 10), (30, 10)]
    assert times([one for one in picture.of("region") if one.name == "out"]) == [(0, 40)]


def test_replays_do_not_share_region_slices(tmp_path: Path) -> None:
    annotations = [{"node_index": 0, "region": "a", "region_path": "a"}]
    picture, _ = drawn(
        store_of(tmp_path / "s.duckdb", node(0, 10, 0, replay=1), node(10, 10, 0, replay=2), annotations=annotations)
    )
    assert times(picture.of("region")) == [(0, 10), (10, 10)]
    assert [one.arguments["replay_id"] for one in picture.of("region")] == [1, 2]


def test_passes_through_an_eager_region_are_slices_of_their_own(tmp_path: Path) -> None:
    where = {"region": "eval", "region_path": "epoch > eval", "phase": "forward", "step": 1}
    kernels = [kernel(10 * n, 10, region_instance=n // 2, **where) for n in range(4)]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *kernels))
    assert times([one for one in picture.of("region") if one.name == "eval"]) == [(0, 20), (20, 20)]
    assert times([one for one in picture.of("region") if one.name == "epoch"]) == [(0, 40)]


def test_a_duration_that_is_not_known_is_an_instant(tmp_path: Path) -> None:
    picture, said = drawn(store_of(tmp_path / "s.duckdb", kernel(0, 10), kernel(5, 10**15, "lost", overrun=True)))
    (lost,) = [one for one in picture.of("kernel") if one.name == "lost"]
    assert (lost.start, lost.end, lost.arguments["duration"]) == (NOW + 5, None, "not known")
    assert "1 kernel of unknown duration: drawn as instants" in said


def test_times_before_1970_move_the_picture_by_whole_seconds(tmp_path: Path) -> None:
    early = -NOW - 1_500_000_000
    picture, said = drawn(store_of(tmp_path / "s.duckdb", kernel(early, 10), kernel(early + 7, 10)))
    assert sorted(one.start for one in picture.of("kernel")) == [500_000_000, 500_000_007]
    assert "All times are 2 s later than in the store" in said


def test_the_last_moment_that_a_store_can_hold(tmp_path: Path) -> None:
    last = 2**63 - 1
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", kernel(last - NOW - 3, 3), kernel(-NOW, 1)))
    assert sorted((one.start, one.end) for one in picture.of("kernel")) == [(0, 1), (last - 3, last)]


def test_names_with_odd_characters(tmp_path: Path) -> None:
    name = 'void f<"x">(\n\t\\ \x00 \N{SNOWMAN} \U0001f600 ' + "x" * 5000
    annotations = [
        {"node_index": 0, "region": "a > b", "region_path": "out > a > b"},
        {"node_index": 1, "region": "", "region_path": "out > "},
    ]
    picture, _ = drawn(
        store_of(tmp_path / "s.duckdb", node(0, 1, 0, name=name), node(1, 1, 1), annotations=annotations)
    )
    odd, empty = sorted(picture.of("kernel"), key=lambda one: one.start)
    assert odd.name == name
    assert [one.name for one in odd.above] == ["out", "a > b"]
    assert [one.name for one in empty.above] == ["out", ""]


def test_attributes_keep_their_structure(tmp_path: Path) -> None:
    attributes = {
        "name": "a",
        "layer": 3,
        "scale": 0.5,
        "on": True,
        "none": None,
        "huge": 2**70,
        "in": [1, {"x": [2]}],
        "no": {},
    }
    annotations = [{"node_index": 0, "region": "a", "region_path": "a", "attributes": json.dumps(attributes)}]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", node(0, 1, 0), annotations=annotations))
    (one,) = picture.of("kernel")
    assert one.arguments["attributes"] == {**attributes, "none": "null", "huge": str(2**70), "no": "{}"}


def test_attributes_that_are_too_deep_do_not_spoil_the_file(tmp_path: Path) -> None:
    deep = "1"
    for _ in range(500):
        deep = f'{{"in": {deep}}}'
    annotations = [{"node_index": 0, "region": "a", "region_path": "a", "attributes": deep}]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", node(0, 1, 0), annotations=annotations))
    inner = picture.of("kernel")[0].arguments["attributes"]
    while isinstance(inner, dict):
        inner = inner["in"]
    assert inner.count("{") == 480


def test_streams_and_devices_that_are_not_known(tmp_path: Path) -> None:
    kernels = [
        kernel(0, 9),
        kernel(0, 9, device=1, stream=3),
        kernel(0, 9, stream=None),
        kernel(0, 9, device=None, stream=None),
    ]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *kernels))
    assert picture.rows(0) == [
        "GPU 0 stream 7",
        "GPU 0 stream not known",
        "GPU 1 stream 3",
        "GPU not known stream not known",
    ]
    assert len(picture.of("kernel")) == 4


def test_a_process_id_of_two_hosts_is_not_shared(tmp_path: Path) -> None:
    processes = [{"rank": rank, "pid": 77, "host": host} for rank, host in enumerate("ab")]
    processes.append({"rank": 2, "pid": 0, "host": None, "gpu": "H200"})
    picture, _ = drawn(
        store_of(tmp_path / "s.duckdb", *(kernel(0, 1, rank=rank) for rank in range(3)), processes=processes)
    )
    tracks = sorted(picture.processes(), key=lambda track: track.sibling_order_rank)
    assert [track.process.process_name for track in tracks] == ["rank 0 (a)", "rank 1 (b)", "rank 2 (H200)"]
    assert [track.process.pid for track in tracks] == [2**22, 2**22 + 1, 2**22 + 2]
    assert tracks[0].description == "process 77 on a"


def test_ranks_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *(kernel(-rank, 1, rank=rank) for rank in (10, 2, 0))))
    tracks = sorted(picture.processes(), key=lambda track: track.sibling_order_rank)
    assert [track.process.process_name for track in tracks] == ["rank 0 (a)", "rank 2 (a)", "rank 10 (a)"]


def test_a_collective_that_is_not_judged_has_no_wait_and_no_flow(tmp_path: Path) -> None:
    call = {
        "communication": True,
        "collective": "allreduce",
        "group_name": "0",
        "group_ranks": "[0, 1, 2]",
        "group_size": 3,
    }
    kernels = [kernel(0, 10, "nccl", rank=rank, step=1, sequence=1, **call) for rank in (0, 1)]
    picture, said = drawn(store_of(tmp_path / "s.duckdb", *kernels))
    calls = picture.of("kernel")
    assert [one.arguments["not_judged"] for one in calls] == ["rank missing"] * 2
    assert "wait share" not in picture.rows(0)  # not known is not nothing
    assert not picture.of("wait", "transfer") and not any(one.flows or one.ended_flows for one in calls)
    assert "not judged: rank missing: 2 all_reduce." in said


def test_collectives_of_several_groups_at_one_moment(tmp_path: Path) -> None:
    def call(rank: int, group: str, stream: int, duration: int) -> Row:
        columns = {
            "communication": True,
            "collective": "allreduce",
            "group_name": group,
            "group_ranks": "[0, 1]",
            "group_size": 2,
        }
        return kernel(0, duration, "nccl", rank=rank, stream=stream, step=1, sequence=1, **columns)

    calls = [call(0, "dp", 1, 30), call(0, "tp", 2, 50), call(1, "dp", 1, 30), call(1, "tp", 2, 50)]
    picture, _ = drawn(store_of(tmp_path / "s.duckdb", *calls))
    flows = {one.arguments["group_name"]: one.flows or one.ended_flows for one in picture.of("kernel")}
    assert len({*flows["dp"], *flows["tp"]}) == 2
    for group in ("dp", "tp"):
        ends = [
            (picture.rank(one.track), bool(one.ended_flows))
            for one in picture.of("kernel")
            if one.arguments["group_name"] == group
        ]
        assert sorted(ends) == [(0, False), (1, True)]  # they arrive together: the later in the file ends it
    assert {name for name in picture.rows(0) if "skew" in name} == {
        "arrival skew in group dp",
        "arrival skew in group tp",
    }


def test_a_job_of_kernels_alone(tmp_path: Path) -> None:
    picture, said = drawn(store_of(tmp_path / "s.duckdb", kernel(0, 10)))
    assert picture.rows(0) == ["stream 7"]
    assert [(one.name, one.arguments) for one in picture.slices] == [("k", {})]
    assert "1 kernel launched outside of every step" in said


def test_a_job_without_a_gpu_shows_the_steps_of_the_host(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", processes=[{"rank": 0}])
    with Store(store) as opened:
        span = {"trace_id": 1, "process_id": 1, "rank": 0, "kind": "step", "name": "ProfilerStep#3", "step": 3}
        opened.connection.execute("UPDATE trace SET gpu_events = 0")
        _insert(opened, "host_span", {**span, "start_ns": NOW, "duration_ns": 1000})
    picture, _ = drawn(store)
    assert picture.rows(0) == ["steps on the host"]
    assert times(picture.of("step")) == [(0, 1000)]


def test_without_gpu_work_no_time_counts_from_it(tmp_path: Path) -> None:
    result = run(store_of(tmp_path / "s.duckdb", processes=[{"rank": 0}]), "--since", "1s")
    assert result.exit_code == 2 and "has no GPU work to count from" in result.stderr


def test_hosts_without_a_common_clock_are_said(tmp_path: Path) -> None:
    processes = [{"rank": rank, "host": host} for rank, host in enumerate("ab")]
    _, said = drawn(store_of(tmp_path / "s.duckdb", kernel(0, 1), kernel(0, 1, rank=1), processes=processes))
    assert "No clock offset is known for rank 0-1" in said


def test_a_large_picture_names_the_alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MANY_KERNELS", 1)
    _, said = drawn(store_of(tmp_path / "s.duckdb", kernel(0, 1), kernel(1, 1)))
    assert said.startswith("2 kernels; the page in a browser handles about 1. Choose with --rank, --step or --region")
    assert "--tar" in said.splitlines()[0]


def test_an_empty_selection_leaves_the_old_file(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", kernel(0, 10))
    store.with_suffix(".pftrace").write_text("before")
    result = run(store, "--step", "99")
    assert result.exit_code == 1 and "steps 99 to 99" in result.stderr
    assert store.with_suffix(".pftrace").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.duckdb", "s.pftrace"]


def test_a_rank_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, said = drawn(store_of(tmp_path / "s.duckdb", kernel(0, 10)), "--rank", "0", "--rank", "7")
    assert "No usable trace of rank 7." in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", "x"], "--step x is neither a step nor a range of steps."),
        (["--step", "5-3"], "--step 5-3 ends before it begins."),
        (["--since", "yesterday"], "--since yesterday is no time."),
        (["--since", "2ms", "--until", "1ms"], "--until is not after --since."),
        (["--tar", "--step", "1"], "--tar packs whole traces."),
        (["--job", "other"], "Two jobs: odd and --job other."),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, options: list[str], said: str) -> None:
    result = run(store_of(tmp_path / "s.duckdb", kernel(0, 10)), *options)
    assert result.exit_code == 2 and said in result.stderr


def test_where_to_write_must_be_said(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", kernel(0, 10))
    environment = {"ANNOTQ_DB": str(store)}
    for place, said in (
        ([], "Where to?"),
        (["-o", str(tmp_path)], "is a folder"),
        (["-o", str(tmp_path / "no" / "x")], "no folder"),
        (["-o", "/dev/null"], "no regular file"),
    ):
        result = CliRunner().invoke(app, ["perfetto", *place], env=environment)
        assert result.exit_code == 2 and said in result.stderr


def test_a_time_in_nanoseconds_is_absolute(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", kernel(0, 10), kernel(10, 10), kernel(20, 10))
    picture, _ = drawn(store, "--since", str(NOW + 10), "--until", str(NOW + 20))
    assert times(picture.of("kernel")) == [(10, 10)]


def test_the_sql_runs_as_it_is_printed(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.duckdb", kernel(0, 10, "it's", region="a", step=2))
    shown = run(store, "--show-sql", "--step", "2", "--region", "a*").stdout
    statements = [part for part in shown.split(";\n") if "SELECT" in part]
    assert len(statements) == 6
    for statement in statements:
        environment = {"ANNOTQ_DB": str(store)}
        asked = CliRunner().invoke(
            app,
            ["query", "SELECT" + statement.partition("SELECT")[2].rstrip(";\n"), "--format", "json"],
            env=environment,
        )
        assert asked.exit_code == 0, asked.stderr
    assert json.loads(asked.stdout)[0]["name"] == "it's"
