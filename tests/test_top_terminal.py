"""`annotq top` on a real terminal: a tmux pane, driven by keys against a collector whose ranks beat and send windows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from beating_job import MS, SECOND, BeatingJob
from collectors import Collector
from jobs import DATA, load, replayed_step, write_job
from live_collector import ANNOTQ, LiveCollector
from spools import wait_for
from traces import write_trace

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

RANKS = 4
TRAINER = Path(__file__).parent / "replaying_trainer.py"
# Says on the terminal how the program ended, and leaves the pane open to be looked at.
WRAP = (
    'before=$(stty -g); "$@"; echo "ended with $?"; [ "$before" = "$(stty -g)" ] && echo "terminal restored"; sleep 600'
)


class Pane:
    """A terminal of its own, with `annotq top` in it. A context manager: leaving it ends the terminal."""

    def __init__(self, *arguments: str | Path, width: int = 120, height: int = 40, **environment: str) -> None:
        self._socket = f"annotq-{uuid.uuid4().hex[:12]}"
        command = [sys.executable, "-m", "annotq.cli", "top", *map(str, arguments)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ANNOTQ_")}
        given = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        size = ["-x", str(width), "-y", str(height)]
        shell = ["bash", "-c", WRAP, "bash", *command]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, *given, *shell, environment=clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def lines(self, *options: str) -> list[str]:
        return self._tmux("capture-pane", "-p", *options).splitlines()

    def text(self) -> str:
        return "\n".join(self.lines())

    def ranks(self) -> list[int]:
        """The ranks of the table, from above."""
        rows = [
            re.match(r" *(\d+) +(?:\S+ +)?(?:running|silent|ending|stopped|gone|-) ", line) for line in self.lines()
        ]
        return [int(row[1]) for row in rows if row]

    def until(self, *words: str) -> None:
        """Wait until all of them are on the screen."""
        deadline = time.monotonic() + 30
        while missing := [word for word in words if word not in self.text()]:
            assert time.monotonic() < deadline, f"{missing} not on the screen:\n{self.text()}"
            time.sleep(0.05)

    def process(self) -> int:
        """The process id of `annotq top`."""
        shell = self._tmux("list-panes", "-F", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])

    def _tmux(self, *words: str, environment: dict[str, str] | None = None) -> str:
        command = ["tmux", "-L", self._socket, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=environment)
        return done.stdout


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Four ranks of five; rank 2 is slow in mlp, rank 3 is a step behind and takes longest, rank 1 was not seen for an hour.

    The steps take minutes, so that nobody else falls silent while the tests run.
    """
    folder = tmp_path_factory.mktemp("live")
    with Collector(folder / "store.duckdb") as collector:
        job = BeatingJob(collector, folder, RANKS, world_size=5)
        for rank in range(RANKS):
            job.window(rank, 100, 5, (100, 300 if rank == 2 else 200, 50))
        durations = {0: 200 * SECOND, 1: 210 * SECOND, 2: 220 * SECOND, 3: 400 * SECOND}
        job.beat({0: 120, 1: 120, 2: 120, 3: 119}, durations, {1: 3610 * SECOND})
        wait_for(lambda: collector.ask("SELECT count(*) FROM heartbeat") == [(RANKS,)])
        yield collector


def test_the_screen_shows_the_job_and_its_ranks_the_worst_first(live: Collector) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("STRAGGLER", "1.50x", "? help")
        text = pane.text()
        assert pane.ranks() == [1, 2, 0, 3]
    assert "live   step 120 " in text and live.address in text
    assert "4 of 5 ranks: 3 running, 1 silent   missing 1: 4" in text
    assert "newest window: steps 100-104 of 4 ranks, coverage 100 % of graph kernels named" in text
    assert "Rank 2 (host node-a) is slow in mlp, forward: 1.50 times" in text
    # gemm: 300 us against 200; rank 3's step: 400 s against the median of 215 s.
    assert re.search(r" 2  node-a +running +120 +220 s  1.02x +400 us +\+100 us  mlp fwd +1.50x", text)
    assert re.search(r" 3  node-a +running +119 +400 s  1.86x", text)
    assert re.search(r" 1  node-a +silent .* 60 min$", text, re.MULTILINE)


def test_keys_sort_choose_and_explain(live: Collector) -> None:
    with Pane("--endpoint", live.address, "--sort", "rank") as pane:
        pane.until("1.50x")
        assert pane.ranks() == [0, 1, 2, 3]
        pane.press("r")
        pane.until("order: rank reversed")
        assert pane.ranks() == [3, 2, 1, 0]
        pane.press("s", "s", "s")
        pane.until("order: time ")
        assert pane.ranks() == [3, 2, 1, 0]
        pane.press("S")
        pane.until("order: step ")
        assert pane.ranks() == [3, 0, 1, 2]
        pane.press("/", "1-2", "Enter")
        pane.until("1-2 of 2")
        assert pane.ranks() == [1, 2]
        pane.press("/", "3-1", "Enter")
        pane.until("'3-1' is no rank or range of ranks")
        pane.press("Escape")
        pane.until("1-4 of 4")
        pane.press("?")
        pane.until("where it loses most of that", "Any key goes back.")
        pane.press("x")
        pane.until("1-4 of 4")


def test_quitting_gives_the_terminal_back(live: Collector) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("1.50x")
        pane.press("q")
        pane.until("ended with 0", "terminal restored")
        assert "node-a" not in pane.text(), "the screen from before is back"


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, "ended with 130"), (signal.SIGTERM, "ended with 143"), (signal.SIGHUP, "ended with 129")],
)
def test_a_signal_gives_the_terminal_back(live: Collector, number: signal.Signals, said: str) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("1.50x")
        os.kill(pane.process(), number)
        pane.until(said, "terminal restored")
        assert "node-a" not in pane.text()


def test_pause_freezes_what_is_shown(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        job = BeatingJob(collector, tmp_path, ranks=2, world_size=2)
        with Pane("--endpoint", collector.address, "--interval", "0.2") as pane:
            pane.until("no profiler window yet", "2 of 2 ranks")
            job.beat({0: 7, 1: 7}, {0: 5 * MS, 1: 5 * MS})
            pane.until("step 7 ")
            pane.press("p")
            pane.until("PAUSED")
            job.beat({0: 8, 1: 8}, {0: 5 * MS, 1: 5 * MS})
            wait_for(lambda: collector.ask("SELECT max(step) FROM heartbeat") == [(8,)])
            pane.press("r")  # keys are answered, with what was there
            pane.until("order: worst reversed")
            assert "step 7 " in pane.text()
            pane.press("p")
            pane.until("step 8 ")


def test_a_collector_that_goes_away_is_said_and_found_again(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / "slow4")
    with (
        LiveCollector(tmp_path / "store.duckdb") as collector,
        Pane("--endpoint", collector.endpoint, "--interval", "0.3") as pane,
    ):
        pane.until("slow4 ", "layers.3.mlp bwd")
        collector.kill()
        pane.until("No answer for", "cannot be reached", "Trying again.", "layers.3.mlp bwd")
        collector.start()
        wait_for(lambda: "No answer" not in pane.text())
        assert "layers.3.mlp bwd" in pane.text()


def test_the_picture_follows_the_size_of_the_terminal(live: Collector) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("1.50x", "compute")
        pane.resize(80, 24)
        wait_for(lambda: "compute" not in pane.text() and "1-4 of 4" in pane.lines()[-1])
        assert pane.ranks() == [1, 2, 0, 3]
        pane.resize(60, 9)
        wait_for(lambda: "1-3 of 4" in pane.text() or "1-2 of 4" in pane.text() or "1-1 of 4" in pane.text())
        assert pane.ranks()[0] == 1
        pane.press("End")
        wait_for(lambda: pane.ranks()[-1] == 3)


def test_ctrl_z_leaves_the_screen_and_fg_returns_to_it(live: Collector) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("1.50x")
        running = pane.process()
        pane.press("C-z")
        wait_for(lambda: "node-a" not in pane.text())
        wait_for(lambda: state_of(running) == "T")
        os.kill(running, signal.SIGCONT)
        pane.until("1.50x")
        pane.press("q")
        pane.until("ended with 0")


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def colours(lines: Sequence[str]) -> set[str]:
    """The SGR numbers that choose a colour."""
    codes = {code for line in lines for found in re.findall(r"\x1b\[([\d;]*)m", line) for code in found.split(";")}
    return {code for code in codes if re.fullmatch(r"[34][0-7]|9[0-7]|[34]8", code)}


def test_no_colour_where_none_is_wanted(live: Collector) -> None:
    with Pane("--endpoint", live.address) as pane:
        pane.until("silent")
        assert colours(pane.lines("-e")) == {"31"}
    with Pane("--endpoint", live.address, NO_COLOR="1") as pane:
        pane.until("silent")
        assert colours(pane.lines("-e")) == set()


def test_a_store_file_is_shown_and_may_be_written_meanwhile(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / "control4")
    with Pane("--db", tmp_path / "store.duckdb", "--interval", "0.2") as pane:
        pane.until("control4 ", "no straggler")
        load(
            tmp_path / "store.duckdb",
            write_job(tmp_path / "more", {0: [[10, 20]] * 3}, ["a", "b"]),
            job="control4",
            attempt=1,
        )
        pane.until("control4 attempt 1 ", "1 of 1 ranks")


def test_a_place_that_is_wrong_is_an_error_and_no_screen(tmp_path: Path) -> None:
    with Pane("--endpoint", "127.0.0.1:1") as pane:
        pane.until("error: The collector at 127.0.0.1:1 cannot be reached", "ended with 4", "terminal restored")


def test_a_job_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with (
        Collector(tmp_path / "store.duckdb") as collector,
        Pane("--endpoint", collector.address, "--interval", "0.2") as pane,
    ):
        pane.until("There is no job in", "Waiting for it; q quits.")
        BeatingJob(collector, tmp_path, ranks=2, world_size=2)
        pane.until("2 of 2 ranks: 2 running")


@contextmanager
def trainers(spool: Path, folder: Path, endpoint: str, ranks: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks of four that write three windows each, and the shipper of their node. Rank 1 is slow in attn."""
    commands = []
    for rank in range(ranks):
        windows = folder / f"rank{rank}"
        windows.mkdir()
        for window in range(3):
            numbers = range(10 * window, 10 * window + 5)
            kernels = ["kernel_0", "kernel_1"]
            events = [e for n in numbers for e in replayed_step(n, 1000.0 * (n + 1), [100 + 100 * rank, 50], kernels)]
            write_trace(windows / f"w{window}.json", events, rank=rank, world_size=4, host_name="node-a")
        commands.append([sys.executable, str(TRAINER), str(spool), "live", str(rank), str(windows), "2"])
    commands.append([*ANNOTQ, "ship", "--spool", str(spool), "--endpoint", endpoint, "-q"])
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_trainers_are_seen_to_come_to_run_and_to_stop(tmp_path: Path) -> None:
    with (
        LiveCollector(tmp_path / "store.duckdb") as collector,
        Pane("--endpoint", collector.endpoint, "--interval", "0.3") as pane,
    ):
        pane.until("There is no job in")
        with trainers(tmp_path / "spool", tmp_path, collector.endpoint, ranks=2) as processes:
            pane.until("live ", "2 of 4 ranks: 2 running   missing 2: 2-3", "attn fwd")
            # Two ranks, 100 us and 200 us: 200 over their median of 150.
            pane.until("1.33x")
            for process in processes:
                assert process.wait(60) == 0
            pane.until("2 of 4 ranks: 2 stopped", "newest window: steps 20-24 of 2 ranks")
        assert pane.ranks() == [1, 0]
