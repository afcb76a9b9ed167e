"""The spool as its writer leaves it: whole numbered files, a lock that says who lives, a bound that only costs traces."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from annotq.agent.errors import AnnotqError
from annotq.agent.file_locks import holder
from annotq.agent.process_info import ProcessInfo
from annotq.agent.spool import SpoolWriter, folder_name
from annotq.agent.spool_reader import ProcessFolder, process_folder

INFO = ProcessInfo("a job/with: odd name", attempt=1, rank=3, host="node1", pid=42, start_ns=1_790_857_026_000_000_000)
END_NS = 1_790_857_027_000_000_000


@pytest.fixture
def spool(tmp_path: Path) -> SpoolWriter:
    return SpoolWriter(tmp_path / "spool", INFO, 1_000_000)


def names(spool: SpoolWriter) -> list[str]:
    return sorted(path.name for path in spool.folder.iterdir() if path.name[0].isdigit())


def content(spool: SpoolWriter, name: str) -> Any:
    return json.loads((spool.folder / name).read_bytes())


def put_trace(spool: SpoolWriter, size: int) -> bool:
    path = spool.temporary("trace.json")
    path.write_bytes(b"x" * size)
    return spool.put_trace(path)


def reader_of(spool: SpoolWriter) -> ProcessFolder:
    found = process_folder(spool.folder)
    assert isinstance(found, ProcessFolder)
    return found


def test_a_folder_per_process_with_numbered_files(spool: SpoolWriter) -> None:
    assert spool.folder.name == f"a-job-with-odd-name.1.rank3.{INFO.key}" == folder_name(INFO)
    spool.put("snapshot", {"format": 1})
    put_trace(spool, 10)
    spool.put("destroyed", {"graph_ids": [7], "time_ns": 1})
    spool.note("something was lost")
    spool.close(END_NS, "stopped")
    assert names(spool) == [
        "00000001.snapshot.json",
        "00000002.trace.json",
        "00000003.destroyed.json",
        "00000004.note.json",
        "00000005.end.json",
    ]
    assert content(spool, "00000005.end.json") == {"time_ns": END_NS, "how": "stopped"}
    assert [file.kind for file in reader_of(spool).files()] == ["snapshot", "trace", "destroyed", "note", "end"]
    assert reader_of(spool).info == INFO
    assert not list(spool.folder.glob(".tmp-*"))


def test_nothing_can_follow_the_end(spool: SpoolWriter) -> None:
    spool.close(END_NS, "stopped")
    spool.close(END_NS, "stopped")
    with pytest.raises(OSError, match="has ended"):
        spool.put("note", {})
    assert names(spool) == ["00000001.end.json"]


def test_a_number_belongs_to_the_order_of_appearance(spool: SpoolWriter) -> None:
    """A shipper that has seen number N takes every lower number for delivered."""
    seen: list[list[str]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(names(spool))

    writers = [
        threading.Thread(target=lambda: [put_trace(spool, 1000) if n % 2 else spool.put("note", {}) for n in range(20)])
        for _ in range(3)
    ]
    watcher = threading.Thread(target=watch)
    for thread in [watcher, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    watcher.join()
    assert [int(name[:8]) for name in names(spool)] == list(range(1, 61))
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(seen))


def test_the_lock_tells_others_who_lives(spool: SpoolWriter) -> None:
    ask = f"from annotq.agent.file_locks import holder; print(holder({str(spool.folder / 'alive.lock')!r}))"

    def answer() -> str:
        return subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    assert answer() == str(os.getpid())
    spool.close(END_NS, "stopped")
    assert answer() == "None"


def test_the_children_of_a_fork_do_not_keep_the_lock(tmp_path: Path) -> None:
    code = f"""if True:
        import os, time
        from pathlib import Path
        from annotq.agent.process_info import ProcessInfo
        from annotq.agent.spool import SpoolWriter
        spool = SpoolWriter(Path({str(tmp_path)!r}), ProcessInfo("job", 0, 0, "h", 1, 1), 1000)
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(60)
            os._exit(0)
        print(child, spool.folder, flush=True)
        os.kill(os.getpid(), 9)
    """
    trainer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert trainer.returncode == -signal.SIGKILL
    child, folder = trainer.stdout.split()
    try:
        assert holder(Path(folder) / "alive.lock") is None
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_the_beat_is_seen_without_a_write(spool: SpoolWriter) -> None:
    before = struct.unpack("<qqqq", (spool.folder / "beat").read_bytes()[:32])
    assert before[:3] == (1, -1, 0) and before[3] > INFO.start_ns
    spool.beat.write(7, 1_500_000, END_NS)
    beat = reader_of(spool).last_beat()
    assert beat is not None
    assert (beat.step, beat.step_ns, beat.time_ns) == (7, 1_500_000, END_NS)
    assert (spool.folder / "beat").stat().st_size == 64


def test_at_the_limit_the_oldest_traces_go_and_one_note_counts_them(spool: SpoolWriter) -> None:
    spool.put("snapshot", {"nodes": "y" * 100_000})
    assert all(put_trace(spool, 300_000) for _ in range(5))
    kinds = [file.kind for file in reader_of(spool).files()]
    assert kinds.count("trace") == 2 and kinds.count("note") == 1 and kinds[0] == "snapshot"
    note = content(spool, names(spool)[-1])
    assert note == {
        "text": "3 traces were given up: the spool was full (limit 1,000,000 bytes).",
        "dropped_traces": 3,
    }


def test_a_trace_that_cannot_fit_is_given_up_itself(spool: SpoolWriter) -> None:
    assert not put_trace(spool, 2_000_000)
    assert [file.kind for file in reader_of(spool).files()] == ["note"]
    assert not list(spool.folder.glob(".tmp-*"))


def test_traces_that_were_shipped_are_not_counted_as_given_up(spool: SpoolWriter) -> None:
    for _ in range(3):
        put_trace(spool, 600_000)
        for file in reader_of(spool).files():
            file.path.unlink()
    assert spool.dropped_traces == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], stderr=subprocess.DEVNULL, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_on_a_full_disk_traces_make_room_for_snapshots(small_disk: Path) -> None:
    spool = SpoolWriter(small_disk, INFO, 1 << 40)
    put_trace(spool, 400_000)
    put_trace(spool, 400_000)
    spool.put("snapshot", {"nodes": "y" * 300_000})
    assert names(spool) == ["00000002.trace.json", "00000003.snapshot.json"]
    with pytest.raises(OSError, match="No space left"):
        spool.put("snapshot", {"nodes": "y" * 2_000_000})
    assert names(spool) == ["00000003.snapshot.json"]
    spool.beat.write(1, 1, END_NS)
    spool.close(END_NS, "stopped")
    assert names(spool)[1:] == ["00000004.note.json", "00000005.end.json"]
    assert content(spool, "00000004.note.json")["dropped_traces"] == 2
    assert not list(spool.folder.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("text", "size"), [("", 8 << 30), ("1000", 1000), ("500MiB", 500 << 20), ("2G", 2 << 30), ("7 kb", 7 << 10)]
)
def test_sizes(text: str, size: int) -> None:
    from annotq.agent.config import spool_bytes

    assert spool_bytes({"ANNOTQ_SPOOL_BYTES": text}) == size


def test_a_wrong_size_is_named() -> None:
    from annotq.agent.config import spool_bytes

    with pytest.raises(AnnotqError, match="'lots'"):
        spool_bytes({"ANNOTQ_SPOOL_BYTES": "lots"})
