"""What a reader makes of a spool: whole files in order, signs of life, and whatever else may lie there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from spools import START_NS, snapshot, trainer_holding, wait_for, writer

from annotq.agent.file_locks import hold, holder
from annotq.agent.spool import SpoolWriter
from annotq.agent.spool_reader import (
    BAD,
    Beat,
    ProcessFolder,
    Unreadable,
    process_folder,
    process_folders,
    remove_leftovers,
)


def reader_of(spool: SpoolWriter) -> ProcessFolder:
    found = process_folder(spool.folder)
    assert isinstance(found, ProcessFolder)
    return found


def test_finished_files_come_in_order_and_nothing_else(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    for kind in ("snapshot", "note", "destroyed"):
        spool.put(kind, {})
    (spool.folder / ".tmp-9-trace.json").write_text("half a trace")
    (spool.folder / "00000004.secret.json").write_text("unknown kind")
    (spool.folder / "00000005.trace.json.gz").write_text("")
    found = [(file.number, file.kind) for file in reader_of(spool).files()]
    assert found == [(1, "snapshot"), (2, "note"), (3, "destroyed"), (5, "trace")]


def test_no_file_is_seen_before_one_that_came_earlier(tmp_path: Path) -> None:
    """A listing while files appear may miss one that is older than the last it shows."""
    spool = writer(tmp_path)
    folder = reader_of(spool)
    writing = threading.Thread(target=lambda: [spool.put("note", {"text": str(i)}) for i in range(300)])
    writing.start()
    while writing.is_alive():
        numbers = [file.number for file in folder.files()]
        assert numbers == list(range(1, len(numbers) + 1))
    writing.join()
    assert len(folder.files()) == 300


def test_files_that_vanish_are_no_error(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    folder = reader_of(spool)
    spool.put("snapshot", snapshot())
    (file,) = folder.files()
    file.path.unlink()
    folder.remove(file)
    folder.set_aside(file, BAD, "no matter")
    assert folder.files() == []
    assert folder.waiting_bytes() == 0


def test_a_trainer_lives_as_long_as_it_holds_its_lock(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    folder = reader_of(spool)
    with trainer_holding(spool.folder) as trainer:
        assert folder.alive()
        assert holder(spool.folder / "alive.lock") == trainer.pid
        assert hold(spool.folder / "alive.lock") is None
        trainer.kill()
        wait_for(lambda: not folder.alive())
    (spool.folder / "alive.lock").unlink()
    assert not folder.alive()


def test_the_beat_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    folder = reader_of(spool)
    first = folder.last_beat()
    assert first is not None
    assert (first.step, first.step_ns) == (None, None)
    spool.beat.write(17, 5_000, START_NS)
    assert folder.last_beat() == Beat(17, 5_000, START_NS)


@pytest.mark.parametrize("content", [b"", b"\1", b"\0" * 64, b"\xff" * 64])
def test_a_torn_beat_is_none(tmp_path: Path, content: bytes) -> None:
    spool = writer(tmp_path)
    (spool.folder / "beat").write_bytes(content)
    assert reader_of(spool).last_beat() is None
    (spool.folder / "beat").unlink()
    assert reader_of(spool).last_beat() is None


def test_folders_that_are_no_process_are_told_apart(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "files").mkdir()
    (tmp_path / "files/00000001.trace.json").write_text("{}")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/process.json").write_text('{"job": "x"')
    (tmp_path / ".tmp-gone-old").mkdir()
    (tmp_path / "shipper.log").write_text("")
    found = list(process_folders(tmp_path))
    assert [entry.path.name for entry in found if isinstance(entry, ProcessFolder)] == [spool.folder.name]
    reasons = {entry.path.name: entry.reason for entry in found if isinstance(entry, Unreadable)}
    assert reasons["files"] == "process.json is missing"
    assert "cannot be read" in reasons["torn"]
    assert list(process_folders(tmp_path / "nowhere")) == []


def test_a_process_that_is_done_leaves_no_folder_unless_files_were_set_aside(tmp_path: Path) -> None:
    clean, blemished = writer(tmp_path, 0), writer(tmp_path, 1)
    for spool in (clean, blemished):
        spool.put("snapshot", snapshot())
        spool.close(99, "stopped")
    folder = reader_of(blemished)
    folder.set_aside(folder.files()[0], BAD, "it is torn")
    reader_of(clean).finish()
    folder.finish()
    assert not clean.folder.exists()
    assert folder.shipped()
    assert folder.files() == []
    assert sorted(path.name for path in (blemished.folder / BAD).iterdir()) == [
        "00000001.snapshot.json",
        "00000001.snapshot.json.reason.txt",
    ]


def test_folders_half_removed_are_removed_later(tmp_path: Path) -> None:
    (tmp_path / ".tmp-gone-job").mkdir()
    (tmp_path / ".tmp-gone-job/process.json").write_text("{}")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
