"""The picture of the recorded jobs against the views: each number in the file has another SQL behind it than the file's own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from jobs import DATA, load
from perfetto_picture import Picture, Slice, draw, read_picture, rows

from annotq.collector.query import Door

WORK = ("kernel", "memcpy", "memset")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "store.duckdb"
    load(path, DATA / "slow4")
    load(path, DATA / "eager4")
    return path


@pytest.fixture(scope="module")
def slow4(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Picture:
    target = tmp_path_factory.mktemp("slow4") / "slow4.pftrace"
    assert draw(store, target, "slow4").exit_code == 0
    return read_picture(target)


@pytest.fixture(scope="module", params=["slow4", "eager4"])
def job(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def picture(store: Path, job: str, tmp_path_factory: pytest.TempPathFactory) -> Picture:
    target = tmp_path_factory.mktemp(job) / "job.pftrace"
    assert draw(store, target, job).exit_code == 0
    return read_picture(target)


def test_a_process_per_rank_in_their_order(slow4: Picture) -> None:
    processes = sorted(slow4.processes(), key=lambda track: track.sibling_order_rank)
    assert [track.process.process_name for track in processes] == [f"rank {n} (vm, NVIDIA H200)" for n in range(4)]
    assert slow4.tracks[0].process_ordering == slow4.tracks[0].PROCESS_ORDERING_EXPLICIT
    assert len({track.process.pid for track in processes}) == 4


def test_the_rows_of_a_rank(store: Path, slow4: Picture) -> None:
    sql = """SELECT stream, bool_or(c.rank IS NOT NULL)
             FROM kernels AS k
             LEFT JOIN collectives AS c ON c.job = k.job AND c.rank = k.rank AND c.arrive_ns = k.start_ns
                 AND c.duration_ns = k.duration_ns
             WHERE k.job = 'slow4' AND k.rank = 2 GROUP BY stream ORDER BY stream"""
    streams = [
        f"stream {stream}{part}"
        for stream, calls in rows(store, sql)
        for part in ["", ": wait and transfer"][: 1 + calls]
    ]
    assert len(streams) > 2
    steps = ["steps on the host", "steps on the GPU"]
    above = [*steps, "regions, all streams", "step time", "wait share", "arrival skew in group 0"]
    assert slow4.rows(2) == above + streams


def test_every_kernel_is_there_once_with_its_times(store: Path, job: str, picture: Picture) -> None:
    sql = """SELECT rank, start_ns, duration_ns, name, kind, region, region_path, phase, graph_id, node_index, correlation_id,
                 step, attributes, stream
             FROM kernels WHERE job = ?"""
    expected = Counter(map(_comparable, rows(store, sql, job)))
    drawn = Counter(_comparable(_row(picture, one)) for one in picture.of(*WORK))
    assert drawn == expected
    assert sum(expected.values()) > 2_000


def test_regions_are_above_their_kernels_by_path(picture: Picture) -> None:
    for one in picture.of(*WORK):
        path = one.arguments.get("region_path")
        assert [above.arguments["region"] for above in one.above] == (path.split(" > ") if path else [])
        for above in one.above:
            assert above.category == "region" and above.end is not None and one.end is not None
            assert above.start <= one.start and one.end <= above.end
            assert above.arguments["phase"] == one.arguments["phase"]
            assert above.arguments.get("step") == one.arguments.get("step")


def test_regions_begin_and_end_with_their_kernels(picture: Picture) -> None:
    inside: dict[int, list[Slice]] = defaultdict(list)
    for one in picture.of(*WORK):
        for above in one.above:
            inside[id(above)].append(one)
    regions = picture.of("region")
    assert regions
    for region in regions:
        kernels = inside[id(region)]
        assert region.start == min(one.start for one in kernels)
        assert region.end == max(one.end for one in kernels if one.end is not None)
        assert region.arguments["kernels"] == len(kernels)
        assert region.arguments["busy_ns"] == sum(one.duration for one in kernels)


def test_passes_through_regions_are_those_of_the_view(store: Path, job: str, picture: Picture) -> None:
    sql = """SELECT rank, region, phase, start_ns, end_ns, busy_ns, union_ns, kernels FROM region_instances WHERE job = ?"""
    drawn = Counter(
        (
            picture.rank(one.track),
            *(one.arguments[name] for name in ("region", "phase")),
            one.start,
            one.end,
            *(one.arguments[name] for name in ("busy_ns", "union_ns", "kernels")),
        )
        for one in picture.of("region pass")
    )
    assert drawn == Counter(rows(store, sql, job))


def test_backward_is_said_in_the_name(slow4: Picture) -> None:
    assert {one.arguments["phase"] for one in slow4.of("region") if one.name == "layers.0.mlp"} == {"forward"}
    assert {one.arguments["phase"] for one in slow4.of("region") if one.name == "layers.0.mlp (backward)"} == {
        "backward"
    }


def test_kernels_are_never_inside_kernels(picture: Picture) -> None:
    assert not [one for one in picture.of(*WORK) for above in one.above if above.category in WORK]


def test_wait_and_transfer_are_those_of_the_view(store: Path, job: str, picture: Picture) -> None:
    expected: Counter[tuple[int, str, int, int]] = Counter()
    sql = "SELECT rank, arrive_ns, wait_ns, transfer_ns FROM collectives WHERE job = ? AND wait_ns IS NOT NULL"
    for rank, arrive, wait, transfer in rows(store, sql, job):
        expected.update([(rank, "wait", arrive, arrive + wait)] * (wait > 0))
        expected.update([(rank, "transfer", arrive + wait, arrive + wait + transfer)] * (transfer > 0))
    drawn = Counter(
        (picture.rank(one.track), one.category, one.start, one.end) for one in picture.of("wait", "transfer")
    )
    assert drawn == expected
    assert drawn


def test_a_wait_names_whom_it_is_for(slow4: Picture) -> None:
    assert {one.name for one in slow4.of("wait")} == {"wait for rank 2"}


def test_flows_connect_the_ranks_of_a_collective(store: Path, job: str, picture: Picture) -> None:
    ranks: dict[int, list[Slice]] = defaultdict(list)
    for one in picture.slices:
        for flow in (*one.flows, *one.ended_flows):
            ranks[flow].append(one)
    sql = "SELECT collective_id, rank, arrive_ns, last_rank FROM collectives WHERE job = ? AND not_judged IS NULL"
    expected: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for collective, rank, arrive, _ in rows(store, sql, job):
        expected[collective].add((rank, arrive))
    drawn = {}
    for slices in ranks.values():
        (collective,) = {one.arguments["collective_id"] for one in slices}
        drawn[collective] = {(picture.rank(one.track), one.start) for one in slices}
        last = max(slices, key=lambda one: one.start)
        assert [bool(one.ended_flows) for one in slices] == [one is last for one in slices]
    assert drawn == expected


def test_counters_are_those_of_the_views(store: Path, slow4: Picture) -> None:
    for rank in range(4):
        steps = rows(store, "SELECT start_ns, duration_ns FROM steps WHERE job = 'slow4' AND rank = ?", rank)
        assert slow4.counter(rank, "step time") == sorted(steps)
        sql = """SELECT s.start_ns, 100.0 * sum(c.wait_ns) / any_value(s.duration_ns)
                 FROM steps AS s
                 JOIN kernels AS k ON k.job = s.job AND k.rank = s.rank AND k.step = s.step
                 JOIN collectives AS c ON c.job = k.job AND c.rank = k.rank AND c.arrive_ns = k.start_ns
                 WHERE s.job = 'slow4' AND s.rank = ? AND c.wait_ns IS NOT NULL
                 GROUP BY s.start_ns"""
        assert dict(slow4.counter(rank, "wait share")) == pytest.approx(dict(rows(store, sql, rank)))
        # The skew by the arrivals alone: these ranks are on one host.
        sql = """SELECT own.arrive_ns, max(every.arrive_ns) - min(every.arrive_ns)
                 FROM collectives AS own
                 JOIN collectives AS every ON every.job = own.job AND every.collective_id = own.collective_id
                 WHERE own.job = 'slow4' AND own.rank = ?
                 GROUP BY own.arrive_ns"""
        assert slow4.counter(rank, "arrival skew in group 0") == sorted(rows(store, sql, rank))


def test_steps_are_those_of_the_view(store: Path, slow4: Picture) -> None:
    sql = "SELECT rank, step, start_ns, end_ns FROM steps WHERE job = 'slow4'"
    expected = Counter((rank, f"step {step}", start, end) for rank, step, start, end in rows(store, sql))
    sql = "SELECT rank, step, host_start_ns, host_start_ns + host_duration_ns FROM steps WHERE job = 'slow4'"
    expected.update((rank, f"step {step}", start, end) for rank, step, start, end in rows(store, sql))
    assert expected == Counter((slow4.rank(one.track), one.name, one.start, one.end) for one in slow4.of("step"))


def test_what_is_left_out_is_said_with_counts(store: Path, tmp_path: Path) -> None:
    said = draw(store, tmp_path / "out.pftrace", "slow4").stderr
    ((outside,),) = rows(store, "SELECT count(*) FROM kernels WHERE job = 'slow4' AND step IS NULL")
    ((nowhere,),) = rows(store, "SELECT count(*) FROM kernels WHERE job = 'slow4' AND region IS NULL")
    assert f"{outside:,} kernels launched outside of every step" in said
    assert f"{nowhere:,} kernels in no region" in said
    assert "coverage of slow4: 4 of 4 ranks" in said


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--rank", "1", "--rank", "3"], "rank IN (1, 3)"),
        (["--rank", "0-1,3"], "rank IN (0, 1, 3)"),
        (["--step", "4"], "step = 4"),
        (["--step", "3-5", "--rank", "2"], "step BETWEEN 3 AND 5 AND rank = 2"),
        (["--region", "layers.*.mlp"], "region LIKE 'layers.%.mlp'"),
        (
            ["--since", "20ms", "--until", "30.5ms"],
            "start_ns < $0 + 30500000 AND start_ns + duration_ns > $0 + 20000000",
        ),
    ],
)
def test_a_selection(store: Path, tmp_path: Path, options: list[str], where: str) -> None:
    ((zero,),) = rows(store, "SELECT min(start_ns) FROM kernels WHERE job = 'slow4'")
    assert draw(store, tmp_path / "part.pftrace", "slow4", *options).exit_code == 0
    picture = read_picture(tmp_path / "part.pftrace")
    sql = f"SELECT rank, start_ns, name FROM kernels WHERE job = 'slow4' AND {where.replace('$0', str(zero))}"
    expected = Counter(rows(store, sql))
    assert expected
    assert Counter((picture.rank(one.track), one.start, one.name) for one in picture.of(*WORK)) == expected


@pytest.mark.parametrize(
    "options",
    [
        ["--rank", "0-3", "--step", "77"],
        ["--region", "no.such.region"],
        ["--region", "layers.0.mlp", "--step", "77"],
        ["--since", "1min"],
    ],
)
def test_a_selection_of_nothing_is_an_error_before_collectives_are_judged(
    store: Path, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Door.ask

    def noted(door: Door, sql: str, *rest: Any, **more: Any) -> Any:
        asked.append(sql)
        return ask(door, sql, *rest, **more)

    monkeypatch.setattr(Door, "ask", noted)
    done = draw(store, tmp_path / "none.pftrace", "slow4", *options)
    assert done.exit_code == 1
    assert "Nothing of job slow4 is in this selection: " in done.stderr
    assert not (tmp_path / "none.pftrace").exists()
    assert asked and not [sql for sql in asked if "_collective_waits" in sql]


@pytest.mark.parametrize("ranks", ["-3", "3-1", "0-9999999", "all"])
def test_ranks_that_are_none(store: Path, tmp_path: Path, ranks: str) -> None:
    done = draw(store, tmp_path / "none.pftrace", "slow4", "--rank", ranks)
    assert done.exit_code == 2 and done.stderr.startswith("error: ")


def test_a_flow_ends_at_the_last_rank_that_is_drawn(store: Path, tmp_path: Path) -> None:
    draw(store, tmp_path / "two.pftrace", "slow4", "--rank", "0", "--rank", "1")
    picture = read_picture(tmp_path / "two.pftrace")
    begun = Counter(flow for one in picture.slices for flow in one.flows)
    ended = Counter(flow for one in picture.slices for flow in one.ended_flows)
    assert len(begun) == 12 and begun == ended and set(begun.values()) == {1}


def test_one_rank_has_no_flows_but_its_waits(store: Path, tmp_path: Path) -> None:
    draw(store, tmp_path / "one.pftrace", "slow4", "--rank", "0")
    picture = read_picture(tmp_path / "one.pftrace")
    assert not [one for one in picture.slices if one.flows or one.ended_flows]
    assert len(picture.of("wait")) == 12


def test_the_waits_of_part_of_a_step_are_no_share_of_it(store: Path, tmp_path: Path) -> None:
    draw(store, tmp_path / "region.pftrace", "slow4", "--region", "layers.0.mlp")
    assert "wait share" not in read_picture(tmp_path / "region.pftrace").rows(0)


def _row(picture: Picture, one: Slice) -> tuple[Any, ...]:
    found = one.arguments
    (stream,) = {int(word) for word in picture.tracks[one.track].name.split() if word.isdigit()}
    return (
        picture.rank(one.track),
        one.start,
        one.duration,
        one.name,
        one.category,
        *(
            found.get(name)
            for name in ("region", "region_path", "phase", "graph_id", "node_index", "correlation_id", "step")
        ),
        None if "attributes" not in found else json.dumps(found["attributes"]),
        stream,
    )


def _comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Attributes as the JSON they are, whatever its spaces."""
    attributes = None if row[-2] is None else json.dumps(json.loads(row[-2]), sort_keys=True)
    return (*row[:-2], attributes, row[-1])
