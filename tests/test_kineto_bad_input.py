"""Bad input: what is whole is kept, and a sentence says what was wrong, where, and what was done."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from traces import Event, kernel, launch, raw, trace_text, write_trace

from annotq.agent.errors import AnnotqError
from annotq.agent.kineto import Trace, read_trace

GOOD = [launch(5, correlation=1), kernel("before", 10, correlation=1), kernel("after", 50, correlation=1)]


def names(trace: Trace) -> list[str]:
    with trace:
        return [row["name"] for batch in trace.gpu_events() for row in batch.to_pylist()]


def partial(trace: Trace, *words: str) -> Trace:
    assert trace.info.status == "partial"
    assert len(trace.info.problems) == 1, trace.info.problems
    for word in (trace.info.path, *words):
        assert word in trace.info.problems[0]
    return trace


@pytest.mark.parametrize("style", ["pretty", "compact"])
@pytest.mark.parametrize(
    ("event", "words"),
    [
        (kernel("k", 0), "`ts` is 0 or negative"),
        (kernel("k", -3), "`ts` is 0 or negative"),
        (kernel("k", raw("NaN")), "JSON is damaged"),
        (kernel("k", "12"), "`ts` is not a number"),
        (kernel("k", raw("1e400")), "`ts` is beyond 64-bit nanoseconds"),
        (kernel("k", raw("99999999999999999999")), "`ts` is beyond 64-bit nanoseconds"),
        ({key: value for key, value in kernel("k", 20).items() if key != "ts"}, "`ts` is missing"),
        ({key: value for key, value in kernel("k", 20).items() if key != "dur"}, "`dur` is missing"),
        ({key: value for key, value in kernel("k", 20).items() if key != "name"}, "`name` is missing"),
        (kernel("k", 20, -1), "`dur` is negative"),
        (kernel("k", 20, raw("9223372036854775")), "`dur` is beyond 64-bit nanoseconds"),
        (kernel("k", 20, correlation=1 << 63), "`correlation` is beyond 64-bit integers"),
        (kernel("k", 20, correlation=1 << 70), ""),
        (kernel("k", 20, stream="seven"), "`stream` is not an integer"),  # type: ignore[arg-type]
        (kernel(raw('"a"b"'), 20), "JSON is damaged"),
        (kernel(raw('"a\\x41"'), 20), "JSON is damaged"),
    ],
)
def test_a_bad_event_costs_only_itself(tmp_path: Path, style: str, event: Event, words: str) -> None:
    path = write_trace(tmp_path / "t.json", [*GOOD[:2], event, GOOD[2]], style=style)
    trace = partial(read_trace(path), words)
    assert trace.info.dropped_events == 1
    assert names(trace) == ["before", "after"]


def test_equal_faults_are_one_sentence_with_their_count(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [*GOOD, *[kernel("k", 0)] * 7])
    trace = partial(read_trace(path), "event 3 (kernel 'k')", "7 in all")
    assert trace.info.dropped_events == 7


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(trace_text([*GOOD, kernel("caf<>", 90)]).encode().replace(b"<>", b"\xff"))
    trace = read_trace(path)
    assert "invalid UTF-8" in trace.info.problems[0]
    assert names(trace) == ["before", "after", "caf\ufffd"]


def test_string_pids_and_tids(tmp_path: Path) -> None:
    events = [
        launch(5, correlation=1, tid="1260"),
        launch(6, correlation=2, tid="main"),
        launch(7, correlation=3, tid="main"),
    ]
    events += [kernel("k", 10 + i, 1, correlation=i) for i in (1, 2, 3)]
    with read_trace(write_trace(tmp_path / "t.json", events)) as trace:
        assert trace.info.problems == ()
        first, second, third = (row["thread_id"] for batch in trace.host_spans() for row in batch.to_pylist())
    assert first == 1260
    assert second == third < 0


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("style", ["pretty", "compact"])
def test_json_cut_in_the_middle(tmp_path: Path, cut: float, style: str) -> None:
    text = trace_text([kernel(f"k{i}", 10 + 20 * i) for i in range(20)], style=style)
    path = tmp_path / "t.json"
    path.write_text(text[: int(len(text) * cut)])
    trace = partial(read_trace(path), "cut before the end")
    found = names(trace)
    assert found == [f"k{i}" for i in range(len(found))]
    assert 20 * cut - 4 <= len(found) <= 20 * cut


def noisy_trace() -> tuple[bytes, bytes]:
    """A trace that does not compress well, and its gzip form."""
    seeded = random.Random(1)
    text = trace_text([kernel(seeded.randbytes(400).hex(), 10 + 20 * i) for i in range(4000)], style="lines").encode()
    return text, gzip.compress(text, 1)


def test_truncated_gzip(tmp_path: Path) -> None:
    _, packed = noisy_trace()
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_trace(path)
    assert trace.info.status == "partial"
    assert "truncated" in trace.info.problems[0]
    assert 1900 <= trace.info.gpu_events <= 2100


def test_damaged_gzip_keeps_what_comes_before_the_damage(tmp_path: Path) -> None:
    _, packed = noisy_trace()
    path = tmp_path / "t.json.gz"
    half = len(packed) // 2
    path.write_bytes(packed[:half] + b"\xff" * 200 + packed[half + 200 :])
    trace = read_trace(path)
    assert "gzip" in trace.info.problems[0]
    assert trace.info.gpu_events >= 1900


def test_wrong_gzip_checksum_keeps_everything(tmp_path: Path) -> None:
    _, packed = noisy_trace()
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[:-8] + b"\0\0\0\0" + packed[-4:])
    trace = partial(read_trace(path), "checksum")
    assert trace.info.gpu_events == 4000


def test_several_gzip_members_and_padding(tmp_path: Path) -> None:
    text = trace_text(GOOD).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:300]) + gzip.compress(text[300:]) + b"\0" * 512)
    trace = read_trace(path)
    assert trace.info.problems == ()
    assert names(trace) == ["before", "after"]


def test_a_kernel_that_runs_seconds_past_the_next_is_flagged(tmp_path: Path) -> None:
    # In the file, the later event stands first.
    events = [kernel("next", 50), kernel("endless", 10, 3_000_000), kernel("other stream", 10, 3_000_000, stream=8)]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    assert trace.info.overrun_events == 1
    assert "'endless'" in trace.info.problems[0]
    with trace:
        rows = [row for batch in trace.gpu_events() for row in batch.to_pylist()]
    assert {row["name"]: row["overrun"] for row in rows} == {"next": False, "endless": True, "other stream": False}


def test_a_collective_in_a_graph_may_wait(tmp_path: Path) -> None:
    events = [
        kernel("ncclDevKernel_AllReduce", 10, 3_000_000, graph=2, correlation=4),
        kernel("k", 50, graph=2, node=1, correlation=4),
    ]
    assert read_trace(write_trace(tmp_path / "t.json", events)).info.problems == ()


def test_no_gpu_events(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.json", [launch(5, correlation=1)]))
    assert "ProfilerActivity.CUDA" in trace.info.problems[0]
    assert names(trace) == []
    assert read_trace(write_trace(tmp_path / "e.json", [])).info.gpu_events == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "not a trace"),
        (b"hello", "not a trace"),
        (b"{}", "not a trace"),
        (b'{"a": {"traceEvents": []}, "b": "\\"traceEvents\\": ["}', "not a trace"),
        (b'{"traceEvents": [{"ph": "X", "na', "before its first whole event"),
        (gzip.compress(b'{"traceEvents": [{"ph": "X"}]}', mtime=0)[:12], "not a trace"),
        (b'{"traceEvents": [{"ph": "X"}]}', "--rank"),
    ],
)
def test_unusable_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(AnnotqError, match=words) as failed:
        read_trace(path)
    assert str(path) in str(failed.value)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(AnnotqError, match="folder"):
        read_trace(tmp_path)
    with pytest.raises(AnnotqError, match="No such file"):
        read_trace(tmp_path / "none.json")


def test_events_after_a_string_that_looks_like_their_key(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", GOOD, note='"traceEvents": [', nested={"traceEvents": [1]})
    assert names(read_trace(path)) == ["before", "after"]


def test_no_file_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    path = write_trace(tmp_path / "t.json", GOOD, gzip=True)
    read_trace(path).close()
    (tmp_path / "bad.json").write_bytes(b"x" * 9_000_000)
    with pytest.raises(AnnotqError):
        read_trace(tmp_path / "bad.json")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.pt.trace.json", 3),
        ("host_RANK-12.json", 12),
        ("trace_rank_0.json.gz", 0),
        ("000007.1712345678.pt.trace.json.gz", 7),
        ("prank3.json", None),
        ("node1.1712345678.pt.trace.json", None),
    ],
)
def test_rank_from_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    path = write_trace(tmp_path / name, GOOD, rank=None)
    if rank is None:
        with pytest.raises(AnnotqError, match="--rank"):
            read_trace(path)
    else:
        assert read_trace(path).info.rank == rank
    assert read_trace(path, rank=5).info.rank == 5
    assert read_trace(write_trace(path, GOOD, rank=2)).info.rank == 2
