"""`annotq run`: real processes, from the training script to the summary."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from collectors import Collector
from jobs import DATA, load, rows

from annotq.cli.run_summary import run_summary
from annotq.collector.query import Door
from annotq.collector.store import Store

ROOT = Path(__file__).parent.parent

# A rank that finds no torch: what is recorded of it is who it is and its steps, and it starts in no time.
RANK = """
import os, signal, sys
sys.modules["torch"] = None
import annotq.agent
annotq.agent.start({arguments})
annotq.agent.step(7)
print("trained", os.environ["ANNOTQ_JOB"])
{end}
"""


@dataclass
class Place:
    """Folders of its own for store and spool; what runs there sees nothing of whoever runs the tests."""

    folder: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not re.match("ANNOTQ_|TORCHELASTIC_|SLURM_", name)}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            kept.pop(name, None)
        self.environment = kept | {"XDG_STATE_HOME": str(self.folder), "ANNOTQ_DB": str(self.store)}

    @property
    def store(self) -> Path:
        return self.folder / "store.duckdb"

    @property
    def spools(self) -> list[Path]:
        return list((self.folder / "annotq/spool").glob("*"))

    def popen(self, *words: str | Path, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "annotq.cli", *map(str, words)],
            env=self.environment | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def annotq(self, *words: str | Path, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        running = self.popen(*words, **more)
        try:
            stdout, stderr = running.communicate(stdin, timeout=100)
        finally:
            running.kill()
        return subprocess.CompletedProcess(running.args, running.returncode, stdout, stderr)

    def script(self, end: str = "", arguments: str = "") -> list[str | Path]:
        path = self.folder / "script.py"
        path.write_text(RANK.format(end=end, arguments=arguments))
        return [sys.executable, path]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_four_ranks_on_cpus_from_the_script_to_the_answers(place: Place) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    train = ROOT / "deploy/examples/train.py"
    done = place.annotq("run", "--", torchrun, "--nproc-per-node", "4", train, "--steps", "10")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    summary = done.stderr.partition("\njob train-")[2]
    assert ": 4 of 4 ranks, 4 profiler windows, 0 GPU events, " in summary
    assert "4 of 4 ranks, 0 of 0 graph kernels matched" in summary
    assert "No GPU work in it" in summary

    names = rows(place.store, "SELECT rank, state, world_size, step FROM agents ORDER BY rank")
    assert names == [(rank, "stopped", 4, 9) for rank in range(4)]
    assert rows(place.store, "SELECT DISTINCT status FROM coverage") == [("complete",)]
    steps = rows(place.store, "SELECT rank, count(*), count(host_duration_ns) FROM steps GROUP BY rank ORDER BY rank")
    assert steps == [(rank, 8, 8) for rank in range(4)]
    regions = rows(
        place.store, "SELECT region, count(*) FROM host_regions WHERE region LIKE 'layers.%mlp' GROUP BY region"
    )
    assert sorted(regions) == [(f"layers.{layer}.mlp", 4) for layer in range(4)]

    commands = [shlex.split(line)[1:] for line in summary.splitlines() if line.startswith("  annotq ")]
    assert [words[0] for words in commands] == ["status", "ranks", "query"]
    for words in commands:
        answer = place.annotq(*words)
        assert answer.returncode == 0, answer.stderr
        assert len(answer.stdout.splitlines()) > 1
    assert place.spools == []  # nothing is left of the run but the store


def test_the_summary_of_a_job_on_gpus_has_the_verdict(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / "slow4")
    with Store(tmp_path / "store.duckdb") as store:
        # As if the ranks had been recorded by agents.
        store.connection.execute("UPDATE process SET process_key = concat('key', rank), start_ns = 1")
    with Door(tmp_path / "store.duckdb") as door:
        text = " ".join(run_summary(door, ["--db", "s.duckdb"], "slow4", "vm", since_ns=0))
    assert text.startswith("job slow4: 4 of 4 ranks, 4 profiler windows, 17,808 GPU events, ")
    assert "coverage of slow4: 4 of 4 ranks, 13,584 of 15,120 graph kernels matched" in text
    assert "STRAGGLER: Rank 2 (host vm) is slow in layers.*.mlp, forward and backward: 3.76 times" in text
    assert text.endswith("annotq stragglers --db s.duckdb --job slow4")


def test_stdin_and_stdout_are_those_of_the_command(place: Place) -> None:
    done = place.annotq("run", "--job", "j", "sh", "-c", "cat; echo to stderr >&2; exit 3", stdin="through")
    assert (done.returncode, done.stdout) == (3, "through")
    assert "to stderr\n" in done.stderr
    assert "No rank reported" in done.stderr and "README" in done.stderr


def test_a_recording_that_is_switched_off_is_named_as_the_reason(place: Place) -> None:
    done = place.annotq("run", "--job", "j", "--", *place.script(), ANNOTQ_DISABLED="1")
    assert (done.returncode, done.stdout) == (0, "trained j\n")
    assert "No rank reported: ANNOTQ_DISABLED is set" in done.stderr


def test_a_command_that_is_killed_is_reported_as_a_shell_does(place: Place) -> None:
    done = place.annotq(
        "run", "--job", "j", *place.script(end="sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)")
    )
    assert (done.returncode, done.stdout) == (128 + 9, "trained j\n")
    # Its shipper has seen it die and told the collector so.
    assert rows(place.store, "SELECT job, rank, state, step FROM agents") == [("j", 0, "gone", 7)]
    assert "job j: 1 of 1 ranks, 0 profiler windows" in done.stderr
    assert "No profiler window came" in done.stderr


def test_signals_reach_the_command_and_it_decides(place: Place) -> None:
    code = "import signal, sys; signal.signal({0}, lambda n, f: sys.exit(n)); print('up', flush=True); signal.pause()"
    for number in (signal.SIGINT, signal.SIGTERM):
        running = place.popen("run", "--job", "j", "--", sys.executable, "-c", code.format(int(number)))
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            running.send_signal(number)
            running.communicate(timeout=60)
        finally:
            running.kill()
        assert running.returncode == number


def test_a_running_collector_is_used_and_left_running(place: Place) -> None:
    with Collector(place.folder / "other.duckdb") as collector:
        # The script insists on a job name of its own.
        script = place.script(arguments="job='mine'")
        done = place.annotq("run", "--endpoint", collector.address, "--", *script)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"trained script-\d{8}-\d{6}-\d+\n", done.stdout)
        assert "job mine: 1 of 1 ranks" in done.stderr
        assert f"annotq status --endpoint {collector.address} --job mine" in done.stderr
        assert collector.ask("SELECT job, state FROM agents") == [("mine", "stopped")]
    assert not place.store.exists()


def test_what_does_not_arrive_is_kept_and_can_be_sent_later(place: Place) -> None:
    done = place.annotq("run", "--endpoint", "127.0.0.1:1", "--wait", "1", "--job", "late", "--", *place.script())
    assert (done.returncode, done.stdout) == (1, "trained late\n")
    assert "not collected: rank 0: 1 files are not with the collector yet" in done.stderr
    hint = re.search(r"annotq (ship --spool \S+ --once)", done.stderr)
    assert hint is not None
    # The shipper that rank 0 started is still trying, and would for ten minutes.
    (spool,) = place.spools
    end_shipper_of(spool)
    assert f"an earlier run left something in {spool}: " in place.annotq("run", "true").stderr
    with Collector(place.store) as collector:
        sent = place.annotq(*shlex.split(hint[1]), ANNOTQ_ENDPOINT=collector.address)
        assert sent.returncode == 0, sent.stderr
        assert collector.ask("SELECT job, state FROM agents") == [("late", "stopped")]


def test_ctrl_c_ends_the_waiting_for_what_cannot_be_sent(place: Place) -> None:
    running = place.popen("run", "--endpoint", "127.0.0.1:1", "--job", "j", "--", *place.script())
    try:
        assert running.stderr is not None
        while "waiting for 1 files of 1 ranks" not in (line := running.stderr.readline()):
            assert line, "it ended without waiting"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
        end_shipper_of(place.spools[0])
    assert running.returncode == 1
    assert "not collected: rank 0" in said


def end_shipper_of(spool: Path) -> None:
    """End the process whose command line names the spool: told to, it would try to send the rest for ten seconds."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"annotq.agent.ship" in words and str(spool).encode() in words:
            os.kill(int(path.parent.name), signal.SIGKILL)
            wait_until(lambda path=path: not alive(path.parent))  # type: ignore[misc]


def alive(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_store_that_is_in_use_stops_the_run_before_the_training(place: Place) -> None:
    with Store(place.store):
        done = place.annotq("run", "--", *place.script())
    assert (done.returncode, done.stdout) == (1, "")
    assert "is open in another process" in done.stderr
    assert "--db" in done.stderr.splitlines()[-1]
    assert place.spools == []


def test_a_name_that_is_taken_does_not_show_the_other_runs_ranks_as_ours(place: Place) -> None:
    with Collector(place.folder / "other.duckdb") as collector:
        first = place.annotq("run", "--endpoint", collector.address, "--job", "j", "--", *place.script())
        second = place.annotq("run", "--endpoint", collector.address, "--job", "j", "--", *place.script())
    assert "job j: 1 of 1 ranks" in first.stderr
    assert second.returncode == 1
    assert "The rank of this run was refused" in second.stderr and "1 of 1 ranks" not in second.stderr
    assert "not collected: rank 0 was refused" in second.stderr


def test_a_name_that_is_no_text_is_a_usage_error(place: Place) -> None:
    done = place.annotq("run", "--job", "a\udcff", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no UTF-8" in done.stderr


def test_a_command_that_is_not_there_is_a_usage_error(place: Place) -> None:
    done = place.annotq("run", "--", "no-such-command", "--flag")
    assert (done.returncode, done.stdout) == (2, "")
    assert "There is no command no-such-command." in done.stderr
    assert place.annotq("run").returncode == 2


def test_the_collector_does_not_outlive_a_run_that_is_killed(place: Place) -> None:
    code = "import os, time; print(os.environ['ANNOTQ_ENDPOINT'], flush=True); time.sleep(60)"
    running = place.popen("run", "--job", "j", "--", sys.executable, "-c", code)
    try:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("127.0.0.1:")
        children = children_of(running.pid)
        running.kill()
        (collector,) = (path for path in children if b"serve" in path.joinpath("cmdline").read_bytes().split(b"\0"))
        wait_until(lambda: not alive(collector))
    finally:
        running.kill()
        for path in children:
            if alive(path):
                os.kill(int(path.name), signal.SIGKILL)
    Store(place.store).close()  # nobody holds it


def children_of(pid: int) -> list[Path]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [Path("/proc") / child for child in text.split()]


def test_variables_of_another_collector_do_not_reach_the_one_of_the_run(place: Place) -> None:
    foreign: Mapping[str, str] = {"ANNOTQ_TLS_CA": "/nowhere/ca.pem", "ANNOTQ_TOKEN": "of another collector"}
    done = place.annotq("run", "--job", "j", "--", *place.script(), **foreign)
    assert done.returncode == 0, done.stderr
    assert rows(place.store, "SELECT state FROM agents") == [("stopped",)]
