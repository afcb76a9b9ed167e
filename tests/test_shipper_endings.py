"""When a shipper ends, and that it ends: what lay in the spool before it, and what would make it wait for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from scripted_collector import ScriptedCollector
from spools import snapshot, trainer_holding, wait_for, writer

from annotq.agent.channel import Access
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions


def test_what_was_refused_long_ago_does_not_end_a_shipper_that_waits_for_its_trainer(tmp_path: Path) -> None:
    old, done = writer(tmp_path, 7), writer(tmp_path, 8)
    (old.folder / "refused").write_text("rank 7 is taken\n")
    (done.folder / "shipped").write_text("all but what is set aside\n")
    with ScriptedCollector() as collector:
        shipper = threading.Thread(
            target=run_shipper, args=(ShipOptions(tmp_path, Access(collector.endpoint), seed=1), threading.Event())
        )
        shipper.start()
        shipper.join(1.5)
        assert shipper.is_alive()
        late = writer(tmp_path)
        with trainer_holding(late.folder):
            wait_for(lambda: collector.registered)
        late.close(99, "stopped")
        shipper.join(20)
        assert not shipper.is_alive()
    assert [request.process.rank for request in collector.registered] == [0]


def test_pipes_and_links_in_the_spool_are_passed_over(tmp_path: Path) -> None:
    """Whoever opens a pipe to read waits until somebody opens it to write."""
    spool = writer(tmp_path / "spool")
    spool.put("snapshot", snapshot())
    spool.close(99, "stopped")
    os.mkfifo(spool.folder / "00000003.trace.json")
    (tmp_path / "elsewhere.json").write_text("{}")
    (spool.folder / "00000004.note.json").symlink_to(tmp_path / "elsewhere.json")
    for name in ("beat", "alive.lock"):
        (spool.folder / name).unlink()
        os.mkfifo(spool.folder / name)
    other = tmp_path / "spool/other"
    other.mkdir()
    os.mkfifo(other / "process.json")
    with ScriptedCollector() as collector:
        options = ShipOptions(tmp_path / "spool", Access(collector.endpoint), once=True, seed=1)
        shipper = threading.Thread(target=run_shipper, args=(options, threading.Event()), daemon=True)
        shipper.start()
        shipper.join(20)
        assert not shipper.is_alive()
    assert len(collector.batches) == 3
    assert (tmp_path / "elsewhere.json").exists() and not spool.folder.exists()


_STUCK = """
import sys, threading
from annotq.agent import ship
ship._END_SECONDS = 0.2
stop = ship.stop_on_signals(0.3)
print("up", flush=True)
open(sys.argv[1]).read()
"""


def test_a_shipper_that_is_stuck_ends_after_its_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([sys.executable, "-c", _STUCK, str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(20) == 130
        assert time.monotonic() - began > 0.3
    finally:
        process.kill()
        process.communicate()
