"""Bad files through the real `annotq ingest`: a sentence names the file and the place, the rest is loaded, exit code 1."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import rows, write_annotations
from traces import BASE_NS, Event, annotation, graph_launch, kernel, launch, raw, step, trace_text, write_trace

GOOD = [step(0, 1000, 50), launch(1005, correlation=1), kernel("first", 1010, correlation=1)]
LAST = kernel("last", 1100, correlation=1)
WHERE = r"(event \d+ \(kernel '|at byte \d+)"


@dataclass(frozen=True)
class Run:
    """What one `annotq ingest FOLDER` said and left behind."""

    code: int
    store: Path
    errors: list[str]

    def error_about(self, path: Path | str) -> str:
        """The lines about a file, as one text."""
        return "\n".join(line for line in self.errors if str(path) in line)

    def names(self, rank: int) -> list[str]:
        sql = "SELECT name FROM kernels WHERE rank = ? ORDER BY start_ns, name"
        return [name for (name,) in rows(self.store, sql, rank)]

    def coverage(self, rank: int) -> tuple[str, str | None]:
        [found] = rows(self.store, "SELECT status, note FROM coverage WHERE rank = ?", rank)
        return found[0], found[1]


def ingest(folder: Path) -> Run:
    """Add a good file of rank 0 to the folder, ingest it and see that the good file is there."""
    write_trace(folder / "rank0.json", [*GOOD, LAST])
    store = folder.parent / f"{folder.name}.duckdb"
    command = [sys.executable, "-m", "annotq.cli", "ingest", str(folder), "--db", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    run = Run(done.returncode, store, errors)
    assert run.names(rank=0) == ["first", "last"], done.stderr
    assert not run.error_about(folder / "rank0.json")
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    return path


def without(event: Event, key: str) -> Event:
    return {name: value for name, value in event.items() if name != key}


BAD_EVENTS = {
    "unescaped quote": (kernel(raw('"a"b"'), 1050), "JSON is damaged"),
    "bad escape": (kernel(raw('"a\\x41"'), 1050), "JSON is damaged"),
    "correlation above int64": (kernel("bad", 1050, correlation=1 << 70), "event dropped"),
    "ts above int64": (kernel("bad", raw("99999999999999999999")), "`ts` is beyond 64-bit"),
    "ts NaN": (kernel("bad", raw("NaN")), "JSON is damaged"),
    "dur NaN": (kernel("bad", 1050, raw("NaN")), "JSON is damaged"),
    "ts 0": (kernel("bad", 0), "`ts` is 0"),
    "ts missing": (without(kernel("bad", 1050), "ts"), "`ts` is missing"),
    "dur missing": (without(kernel("bad", 1050), "dur"), "`dur` is missing"),
    "dur negative": (kernel("bad", 1050, -1), "`dur` is negative"),
}


@pytest.fixture(scope="module")
def bad_events(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One folder, one file per rank, one bad event in each."""
    folder = tmp_path_factory.mktemp("bad") / "job"
    folder.mkdir()
    for rank, (event, _) in enumerate(BAD_EVENTS.values(), start=1):
        write_trace(folder / f"rank{rank}.json", [*GOOD, event, LAST], rank=rank)
    return ingest(folder)


@pytest.mark.parametrize(("rank", "fault"), list(enumerate(BAD_EVENTS, start=1)), ids=list(BAD_EVENTS))
def test_a_bad_event_costs_only_itself(bad_events: Run, rank: int, fault: str) -> None:
    assert bad_events.code == 1
    sentence = bad_events.error_about(f"rank{rank}.json")
    assert BAD_EVENTS[fault][1] in sentence
    assert re.search(WHERE, sentence), sentence
    assert bad_events.names(rank) == ["first", "last"]
    status, note = bad_events.coverage(rank)
    assert status == "partial"
    assert note and sentence.endswith(note)


def test_damaged_files_keep_what_is_whole(folder: Path) -> None:
    utf8, cut, packed = folder / "rank1.json", folder / "rank2.json", folder / "rank3.json.gz"
    text = trace_text([*GOOD, kernel("caf<>", 1050), LAST], rank=1)
    utf8.write_bytes(text.encode().replace(b"<>", b"\xff"))
    text = trace_text([kernel(f"k{i}", 1000 + 20 * i) for i in range(9)], rank=2)
    cut.write_text(text[: text.index("k6")])
    seeded = random.Random(1)  # names that do not compress: half of the file is half of the events
    names = [f"k{i:02} {seeded.randbytes(300).hex()}" for i in range(40)]
    whole = gzip.compress(trace_text([kernel(name, 1000 + 20 * i) for i, name in enumerate(names)], rank=3).encode())
    packed.write_bytes(whole[: len(whole) // 2])
    run = ingest(folder)
    assert run.code == 1
    assert re.search(r"invalid UTF-8.* at byte \d+", run.error_about(utf8))
    assert run.names(rank=1) == ["first", "caf\ufffd", "last"]
    assert "the JSON is cut before the end of the events" in run.error_about(cut)
    assert run.names(rank=2) == [f"k{i}" for i in range(6)]
    assert "the gzip stream ends early (truncated file)" in run.error_about(packed)
    kept = run.names(rank=3)
    assert 15 <= len(kept) <= 20
    assert kept == names[: len(kept)]
    assert [run.coverage(rank)[0] for rank in (2, 3)] == ["partial", "partial"]


def test_a_whole_file_replaces_the_partial_one_it_was_copied_over(folder: Path) -> None:
    bad = write_trace(folder / "rank1.json", [*GOOD, LAST], rank=1)
    whole = bad.read_text()
    bad.write_text(whole[: whole.index('"last"')])
    assert ingest(folder).code == 1
    bad.write_text(whole)
    run = ingest(folder)
    assert run.errors == []
    assert run.names(rank=1) == ["first", "last"]
    assert run.coverage(rank=1) == ("complete", None)


def test_string_pids_and_tids_mean_what_numbers_mean(folder: Path) -> None:
    # Nothing is lost, and Kineto itself writes pids such as "Spans": no complaint.
    events = [annotation("eval", 1000, 50, tid="main"), launch(1005, correlation=1, tid="main")]
    events += [annotation("train", 1000, 50, tid="1260"), launch(1005, correlation=2, tid=1260)]
    events += [kernel("a", 1010, correlation=1), kernel("b", 1030, correlation=2) | {"pid": "0", "tid": "stream 7"}]
    write_trace(folder / "rank1.json", [event | {"pid": str(event["pid"])} for event in events], rank=1)
    run = ingest(folder)
    assert (run.code, run.errors) == (0, [])
    found = rows(run.store, "SELECT name, region, device, stream FROM kernels WHERE rank = 1 ORDER BY name")
    assert found == [("a", "eval", 0, 7), ("b", "train", 0, 7)]


def test_two_files_that_claim_one_rank(folder: Path) -> None:
    first = write_trace(folder / "host-a.json", [kernel("a", 1000)], rank=1)
    second = write_trace(folder / "host-b.json", [kernel("b", 1005)], rank=1)
    run = ingest(folder)
    assert run.code == 1
    [sentence] = run.errors
    assert "rank 1 is claimed twice" in sentence
    assert str(first) in sentence
    assert str(second) in sentence
    assert run.names(rank=1) == ["a"]


def test_files_that_are_no_traces(folder: Path) -> None:
    bad = {
        write_trace(folder / "nameless.json", [kernel("a", 1000)], rank=None): "its rank",
        write_trace(folder / "rank1.json", [step(0, 1000, 50), launch(1005, correlation=1)], rank=1): "no GPU events",
        folder / "rank2.json": "is empty",
        folder / "rank3.json": "not a trace",
        folder / "rank4.json": "not a trace",
        folder / "rank5.json.gz": "not a trace",
    }
    (folder / "rank2.json").write_text("")
    (folder / "rank3.json").write_text("PK\x03\x04 a zip")
    (folder / "rank4.json").write_text('{"loss": [1, 2]}')
    (folder / "rank5.json.gz").write_bytes(gzip.compress(b"step,loss\n1,2\n"))
    run = ingest(folder)
    assert run.code == 1
    for path, words in bad.items():
        assert words in run.error_about(path)
    assert len(run.errors) == len(bad)
    assert run.coverage(rank=3)[0] == "rejected"


def graph_work(rank: int) -> list[Event]:
    return [step(0, 1000, 50), graph_launch(1005, correlation=7), kernel("g", 1010, correlation=7, graph=2, node=rank)]


def test_annotations_of_another_process(folder: Path) -> None:
    write_trace(folder / "rank1.json", graph_work(1), rank=1)
    other = write_annotations(folder / "rank1.annotations.json", {1: "mlp"}, graph=9)
    run = ingest(folder)
    assert run.code == 1
    assert "annotations belong to another process" in run.error_about(folder / "rank1.json")
    assert run.names(rank=1) == ["g"]
    assert rows(run.store, "SELECT matched, orphan, annotated_nodes FROM coverage WHERE rank = 1") == [(0, 1, 1)]
    assert str(other) in "\n".join(run.errors)


class Burglar:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_annotation_files_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    write_trace(folder / "rank1.json", graph_work(1), rank=1)
    bad = {
        "kernel_annotations_rank1_fwd_bwd.pkl": (pickle.dumps({2 << 32 | 1: [Burglar(tmp_path / "seen")]}), "system"),
        "rank2.pkl": (pickle.dumps({1: 2})[:-3], "pickle"),
        "rank3.annotations.json": (b"{", "is not JSON"),
        "rank4.annotations.json": (b"[1]", "holds a list"),
        "rank5.annotations.json": (b'{"x": ["mlp"]}', "key 'x'"),
    }
    for name, (content, _) in bad.items():
        (folder / name).write_bytes(content)
    run = ingest(folder)
    assert run.code == 1
    for name, (_, words) in bad.items():
        assert words in run.error_about(folder / name)
    assert not (tmp_path / "seen").exists()
    assert run.names(rank=1) == ["g"]


def test_a_kernel_that_runs_seconds_past_the_next_is_not_summed(folder: Path) -> None:
    bad = write_trace(folder / "rank1.json", [*GOOD, kernel("endless", 1030, 3_000_000, correlation=1), LAST], rank=1)
    run = ingest(folder)
    assert run.code == 1
    assert "'endless'" in run.error_about(bad)
    assert str(BASE_NS + 1_030_000) in run.error_about(bad)
    durations = rows(run.store, "SELECT name, duration_ns FROM kernels WHERE rank = 1 ORDER BY start_ns")
    assert durations == [("first", 10_000), ("endless", None), ("last", 10_000)]
    assert rows(run.store, "SELECT busy_ns, duration_ns FROM steps WHERE rank = 1") == [(20_000, 100_000)]


def test_base_times_may_differ(folder: Path) -> None:
    earlier = [event | {"ts": event["ts"] + 5_000_000} for event in [*GOOD, LAST]]
    write_trace(folder / "rank1.json", earlier, rank=1, base_ns=BASE_NS - 5_000_000_000)
    absolute = [event | {"ts": raw(f"{BASE_NS // 1000 + event['ts']}.000")} for event in [*GOOD, LAST]]
    write_trace(folder / "rank2.json", absolute, rank=2, base_ns=None)
    run = ingest(folder)
    assert (run.code, run.errors) == (0, [])
    starts = rows(run.store, "SELECT DISTINCT name, start_ns FROM kernels ORDER BY start_ns")
    assert starts == [("first", BASE_NS + 1_010_000), ("last", BASE_NS + 1_100_000)]


def test_a_bad_file_leaves_what_is_said_about_the_others_alone(folder: Path) -> None:
    """A refused trace and annotations without a trace come from no known host: the clocks of the others stand."""
    for rank in (2, 3):
        write_trace(folder / f"rank{rank}.json", [*GOOD, LAST], rank=rank, host_name="node-a")
    write_annotations(folder / "rank4.annotations.json", {1: "mlp"})
    (folder / "rank1.json").write_text(json.dumps({"loss": []}))
    run = ingest(folder)
    assert run.code == 1
    assert rows(run.store, "SELECT clock_error_ns FROM coverage WHERE rank IN (2, 3)") == [(1_000,), (1_000,)]
