"""Leaving `annotq top` while a question is under way in the background: the question ends, the process does not abort."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collectors import Collector
from jobs import DATA, load

# Takes hours when nobody stops it.
ENDLESS = "SELECT count(*) FROM range(1000000) AS a, range(10000000) AS b WHERE (a.range * b.range) % 7 = 3"
# As annotq top does it: a thread asks, the program ends.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from annotq.agent.errors import AnnotqError
from annotq.cli.top.place import Place
from annotq.collector.query import Limits

def ask():
    try:
        with place.door() as door:
            asking.set()
            door.ask(sys.argv[2])
    except AnnotqError:
        print("stopped", flush=True)

where = sys.argv[1]
asking = threading.Event()
with Place(Path(where) if where.endswith(".duckdb") else where, Limits(seconds=3600)) as place:
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    asking.wait()
    time.sleep(float(sys.argv[3]))
thread.join(5)  # it has nothing to do any more but to say so
try:
    with place.door():
        print("asked again")
except AnnotqError:
    print("closed")
"""


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("seconds", [0, 0.5])  # before the question has begun, and while it is busy
def test_a_question_under_way_is_stopped_when_the_program_ends(tmp_path: Path, remote: bool, seconds: float) -> None:
    store, spill = tmp_path / "store.duckdb", tmp_path / "spill"
    spill.mkdir()
    load(store, DATA / "torch211")
    if remote:
        with Collector(store) as collector:
            done = run_program(collector.address, spill, seconds)
    else:
        done = run_program(str(store), spill, seconds)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["stopped", "closed"], "")
    assert list(spill.iterdir()) == []


def run_program(where: str, spill: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, where, ENDLESS, str(seconds)]
    return subprocess.run(command, env={"TMPDIR": str(spill)}, capture_output=True, text=True, timeout=60, check=False)
