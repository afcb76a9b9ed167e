"""Jobs on several hosts whose clocks differ: pictures and archives on the common clock."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from jobs import load
from perfetto_picture import draw, read_picture, rows
from simulated_job import HostClocks, Plan, simulate
from simulated_layout import Layout
from simulated_store import simulated_store
from traces import graph_launch, kernel, step, write_trace

from annotq.cli.perfetto.jobs import Trace
from annotq.cli.perfetto.manifest import Member

CLOCKS = HostClocks(offset_ns=50_000_000, drift_ppb=3_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = Plan(seed=3, layout=Layout(dp=2, tp=2, ranks_per_host=2), steps=3, clocks=CLOCKS)
    return simulated_store(tmp_path_factory.mktemp("hosts") / "store.duckdb", hosts=simulate(plan))


def test_times_are_those_of_the_common_clock(store: Path, tmp_path: Path) -> None:
    draw(store, tmp_path / "hosts.pftrace", "hosts")
    picture = read_picture(tmp_path / "hosts.pftrace")
    drawn = Counter((picture.rank(one.track), one.start, one.duration, one.name) for one in picture.of("kernel"))
    assert drawn == Counter(rows(store, "SELECT rank, start_ns, duration_ns, name FROM kernels"))
    own_clock = Counter(rows(store, "SELECT rank, start_ns, duration_ns, name FROM gpu_event"))
    assert {rank for rank, *_ in (drawn - own_clock)} == {2, 3}


def test_flows_join_the_ranks_of_each_group(store: Path, tmp_path: Path) -> None:
    draw(store, tmp_path / "hosts.pftrace", "hosts")
    picture = read_picture(tmp_path / "hosts.pftrace")
    drawn: dict[int, set[int]] = {}
    for one in picture.slices:
        for flow in (*one.flows, *one.ended_flows):
            drawn.setdefault(flow, set()).add(picture.rank(one.track))
    sql = """SELECT string_agg(CAST(rank AS VARCHAR), ' ' ORDER BY rank) FROM collectives
             WHERE not_judged IS NULL GROUP BY collective_id"""
    expected = Counter(tuple(map(int, ranks.split())) for (ranks,) in rows(store, sql))
    assert Counter(tuple(sorted(ranks)) for ranks in drawn.values()) == expected
    assert len(expected) > 2  # groups along both dimensions


def test_offsets_of_an_archive_are_those_of_the_views(store: Path) -> None:
    """Clocks that drift: the offset holds in the middle of a trace, and up to the drift that is said at its ends."""
    with duckdb.connect(str(store), read_only=True) as connection:
        columns = [f"{name}" for name in Trace.__dataclass_fields__]
        sql = f"""SELECT {", ".join(columns)} FROM (SELECT t.*, r.path, r.sha256, r.base_ns, r.window_start_ns, r.window_end_ns
                  FROM _traces AS t JOIN trace AS r ON r.trace_id = t.trace_id)"""
        found = [dict(zip(columns, row, strict=True)) for row in connection.execute(sql).fetchall()]
        times = """SELECT e.trace_id, min(g.start_ns), min(e.start_ns), max(g.start_ns), max(e.start_ns)
                   FROM _events AS e JOIN gpu_event AS g
                   ON g.trace_id = e.trace_id AND g.node_index = e.node_index AND g.correlation_id = e.correlation_id
                   GROUP BY e.trace_id"""
        ends = {trace: own_and_common for trace, *own_and_common in connection.execute(times).fetchall()}
    assert len(found) == 4
    for row in found:
        first, common_first, last, common_last = ends[row["trace_id"]]
        member = Member("rank.json", "rank", Trace(**{**row, "window_start_ns": first, "window_end_ns": last}))
        offset = member.zero_ns - row["base_ns"]
        assert abs(common_first - first - offset) <= member.drift_error_ns + 1
        assert abs(common_last - last - offset) <= member.drift_error_ns + 1
    assert max(Member("", "", Trace(**row)).trace.offset_ns for row in found) > 0


BASES = (1_790_857_026_000_000_000, 1_790_857_020_000_000_000)
OFFSETS = (0, -3_000_123)  # what the second host's clock is to be corrected by


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Two ranks on two hosts, a trace of each with its own base, their offset known; one of them compressed."""
    for rank, base_ns in enumerate(BASES):
        shown_us = (BASES[0] - base_ns - OFFSETS[rank]) / 1000  # the same moments for both
        events = [step(1, 100 + shown_us, 50), graph_launch(110 + shown_us, correlation=5)]
        events.append(kernel("gemm", 130 + shown_us, 10, correlation=5, graph=2, node=1))
        path = tmp_path / ("rank0.json", "rank1.json.gz")[rank]
        write_trace(path, events, rank=rank, world_size=2, base_ns=base_ns, gzip=rank == 1, host_name=f"host{rank}")
    store = tmp_path / "store.duckdb"
    load(store, tmp_path, job="two")
    with duckdb.connect(str(store)) as connection:
        connection.execute("DELETE FROM clock")
        for rank, offset_ns in enumerate(OFFSETS):
            values = ["two", 0, f"host{rank}", offset_ns, 0, 0, 500, "ping"]
            connection.execute("INSERT INTO clock VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return store


def test_an_archive_holds_the_traces_and_their_offsets(two_files: Path, tmp_path: Path) -> None:
    result = draw(two_files, tmp_path / "two.tar", "two", "--tar")
    assert result.exit_code == 0, result.stderr
    with tarfile.open(tmp_path / "two.tar") as archive:
        members = {name: _content(archive, name) for name in archive.getnames()}
    manifest = json.loads(members.pop("perfetto_manifest.json"))["perfetto_manifest"]
    assert manifest["version"] == 1
    assert [entry["machine"]["name"] for entry in manifest["files"]] == ["rank 0 (host0)", "rank 1 (host1)"]
    assert [entry["path"] for entry in manifest["files"]] == list(members) == ["rank0.json", "rank1.json"]
    kernels = {}
    for entry in manifest["files"]:
        (event,) = [one for one in json.loads(members[entry["path"]])["traceEvents"] if one["name"] == "gemm"]
        clocks: dict[str, Any] = entry.get("clocks", {"offset_ns": 0})
        kernels[entry["path"]] = round(event["ts"] * 1000) + clocks["offset_ns"]
    # The kernels ran at the same moment: with the offsets both files say so.
    assert kernels["rank0.json"] == kernels["rank1.json"]
    # The reference is the file with the earliest zero, so that no time becomes negative.
    assert manifest["files"][0]["clocks"]["sync_to"] == {"file": "rank1.json"}
    assert manifest["files"][0]["clocks"]["offset_ns"] == 6_000_000_000 + 3_000_123


def test_a_file_that_is_gone_or_another_one_is_named(two_files: Path, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text((tmp_path / "rank0.json").read_text() + " ")
    result = draw(two_files, tmp_path / "two.tar", "two", "--tar")
    assert result.exit_code == 0
    assert "1 trace is not in it:" in result.stderr and "rank0.json (not the file that was loaded)" in result.stderr
    with tarfile.open(tmp_path / "two.tar") as archive:
        assert archive.getnames() == ["rank1.json", "perfetto_manifest.json"]
    (tmp_path / "rank1.json.gz").unlink()
    (tmp_path / "two.tar").unlink()
    result = draw(two_files, tmp_path / "two.tar", "two", "--tar")
    assert result.exit_code == 1 and "rank1.json.gz (no longer there)" in result.stderr
    assert not (tmp_path / "two.tar").exists()


def test_an_archive_of_some_ranks(two_files: Path, tmp_path: Path) -> None:
    draw(two_files, tmp_path / "one.tar", "two", "--tar", "--rank", "1")
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert archive.getnames() == ["rank1.json", "perfetto_manifest.json"]


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
