"""`annotq doctor`: what it finds, what it says to do, and that nothing broken can break it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collectors import Collector
from spools import add_trace, trainer_holding, writer
from traces import kernel, write_trace

from annotq.agent.doctor import Check, identity_checks, spool_checks
from annotq.agent.doctor_collector import collector_checks
from annotq.agent.doctor_cuda import ancestors, libcupti, tool_checks
from annotq.agent.doctor_torch import probe, torch_checks
from annotq.collector.store import Store

TOKEN = "a secret of the test"


def clean_environment(**more: str | Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not re.match("ANNOTQ_|TORCHELASTIC_|SLURM_", name)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        kept.pop(name, None)
    return kept | {name: str(value) for name, value in more.items()}


def doctor(*arguments: str | Path, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "annotq.cli", "doctor", *map(str, arguments)],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=100,
    )


def by_what(checks: Any) -> dict[str, Check]:
    return {check.what: check for check in checks}


def test_all_is_looked_at_on_this_machine(tmp_path: Path) -> None:
    places = {"XDG_STATE_HOME": tmp_path, "ANNOTQ_DB": tmp_path / "store.duckdb"}
    done = doctor(**places)
    lines = done.stdout.splitlines()
    assert all(re.match(r"(ok|warn|FAIL) +[\w -]+: ", line) for line in lines), done.stdout
    names = [re.split(r" {2,}", line.partition(":")[0])[1] for line in lines]
    for name in ("python", "torch", "cuda", "driver", "other profilers", "rank", "job", "spool", "collector", "store"):
        assert name in names, done.stdout
    assert (done.returncode == 1) == any(line.startswith("FAIL") for line in lines)
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


def test_every_line_of_a_rank_carries_its_number(tmp_path: Path) -> None:
    rank = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "mine",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    done = doctor("--spool", tmp_path, "--db", tmp_path / "none.duckdb", **rank)
    assert all(line.startswith("rank 3  ") for line in done.stdout.splitlines())
    assert "rank: 3 of 4 (RANK), local rank 1" in done.stdout
    assert "job: mine (TORCHELASTIC_RUN_ID), attempt 2 (TORCHELASTIC_RESTART_COUNT)" in done.stdout


def test_json_for_programs(tmp_path: Path) -> None:
    done = doctor("--spool", tmp_path, "--endpoint", "127.0.0.1:1", "--format", "json", RANK="3", WORLD_SIZE="4")
    (line,) = done.stdout.splitlines()  # one per rank, so that several can share a pipe
    rows = json.loads(line)
    assert {row["rank"] for row in rows} == {3}
    (collector,) = (row for row in rows if row["what"] == "collector")
    assert (collector["state"], done.returncode) == ("FAIL", 1)
    assert "cannot be reached" in collector["found"] and "annotq serve" in collector["fix"]


def fake_torch(folder: Path, code: str) -> dict[str, str]:
    """An environment in which `import torch` runs this code."""
    folder.mkdir()
    (folder / "torch.py").write_text(code)
    return clean_environment(PYTHONPATH=folder)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libtorch.so: cannot open')", "libtorch.so: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11"),
        ("print('noise'); import sys; sys.exit(3)", "failed"),
    ],
)
def test_a_broken_torch_is_a_finding_and_not_an_end(tmp_path: Path, code: str, said: str) -> None:
    (check,) = torch_checks(fake_torch(tmp_path / "broken", code))
    assert check.state == "FAIL"
    assert said in check.found and check.fix


def test_an_interpreter_without_torch_says_so(tmp_path: Path) -> None:
    # -S and an empty folder: an interpreter that sees no installed package.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    assert "No module named 'torch'" in probe(clean_environment(), str(bare)).error


def test_the_whole_command_works_without_torch(tmp_path: Path) -> None:
    # find_spec finds nothing when the name is blocked.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None\n")
    done = doctor("--spool", tmp_path / "spool", "--db", tmp_path / "none.duckdb", PYTHONPATH=tmp_path)
    assert "warn  torch: not installed: nothing can be recorded here -> pip install 'torch>=2.14'" in done.stdout


def test_an_older_torch_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    code = """if True:
        import types, sys
        __version__ = "2.12.0+cpu"
        version = types.SimpleNamespace(cuda=None, hip=None)
        cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    """
    check = next(iter(torch_checks(fake_torch(tmp_path / "older", code))))
    assert (check.state, check.what) == ("warn", "torch")
    assert check.found.startswith("2.12.0+cpu: CUDA graphs get no names")


@pytest.mark.parametrize(
    ("environment", "state", "said"),
    [
        ({}, "ok", "none seen"),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, "FAIL", "Nsight Systems (NSYS_PROFILING_SESSION_ID)"),
        ({"CUDA_INJECTION64_PATH": "/opt/tool.so"}, "FAIL", "CUDA_INJECTION64_PATH"),
        ({"KINETO_USE_DAEMON": "1"}, "warn", "dynolog"),
    ],
)
def test_who_holds_cupti_is_seen_in_the_environment(environment: dict[str, str], state: str, said: str) -> None:
    (check,) = tool_checks(environment)
    assert (check.state, said in check.found) == (state, True), check


def test_a_profiler_is_seen_among_the_processes_above(tmp_path: Path) -> None:
    # A shell by the name of Nsight Compute starts the question.
    ncu = tmp_path / "ncu"
    ncu.symlink_to("/bin/sh")
    code = "from annotq.agent.doctor_cuda import tool_checks; print(*(check.found for check in tool_checks({})))"
    done = subprocess.run(
        [ncu, "-c", f'{sys.executable} -c "{code}"; true'], env=clean_environment(), capture_output=True, text=True
    )
    assert re.match(r"this process runs under Nsight Compute \(process \d+\)", done.stdout), done
    assert next(ancestors())[0] == os.getppid()


def test_cupti_is_found_where_cuda_is_installed(tmp_path: Path) -> None:
    library = tmp_path / "extras/CUPTI/lib64/libcupti.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    found = libcupti({"CUDA_HOME": str(tmp_path)})
    # A package wins over CUDA_HOME, as the loader of torch has it.
    assert found is not None and (found == str(library) or "nvidia" in found)


def test_a_job_that_would_collide_is_warned_of() -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
    warning = by_what(identity_checks(environment))["identity"]
    assert warning.state == "warn"
    assert "--rdzv-id" in warning.fix or "ANNOTQ_JOB" in warning.fix


def test_a_spool_that_cannot_be_made_fails() -> None:
    (check,) = spool_checks(Path("/proc/annotq"), {})
    assert (check.state, "ANNOTQ_SPOOL" in check.fix) == ("FAIL", True), check


def test_a_spool_with_less_room_than_it_may_take_is_warned_of(tmp_path: Path) -> None:
    check = by_what(spool_checks(tmp_path, {"ANNOTQ_SPOOL_BYTES": "1000TiB"}))["spool"]
    assert (check.state, "ANNOTQ_SPOOL_BYTES" in check.fix) == ("warn", True)
    check = by_what(spool_checks(tmp_path, {"ANNOTQ_SPOOL_BYTES": "plenty"}))["spool size"]
    assert check.state == "FAIL"


def test_what_earlier_runs_left_is_named_with_the_command_that_sends_it(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", [kernel("k", 1)], rank=0)
    for rank in (0, 1):
        add_trace(writer(tmp_path / "spool", rank), trace)
    (folder,) = (tmp_path / "spool").glob("*rank1*")
    with trainer_holding(folder):
        checks = by_what(spool_checks(tmp_path / "spool", {}))
    assert checks["spool in use"].found == "1 ranks record into it, no shipper"
    left = checks["left in the spool"]
    assert (left.state, left.fix) == ("warn", f"annotq ship --spool {tmp_path / 'spool'} --once")
    assert "of 1 ranks that ended" in left.found


def test_what_a_run_that_was_killed_left_is_found(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", [kernel("k", 1)], rank=0)
    add_trace(writer(tmp_path / "spool/run-train-7"), trace)
    left = by_what(spool_checks(tmp_path / "spool", {}))["left in the spool"]
    assert left.fix == f"annotq ship --spool {tmp_path / 'spool/run-train-7'} --once"


def test_what_waits_for_another_collector_is_found_too(tmp_path: Path) -> None:
    """Each collector has a spool of its own below the usual folder; what is set aside in a process is none of them."""
    trace = write_trace(tmp_path / "rank0.json", [kernel("k", 1)], rank=0)
    base = tmp_path / "annotq/spool"
    spool = writer(base / "other_4517")
    add_trace(spool, trace)
    plain = writer(base)
    (plain.folder / "bad").mkdir()
    (plain.folder / "bad/00000001.note.json").write_text("{}")
    plain.close(99, "stopped")
    checks = list(spool_checks(base / "here_4517", {"XDG_STATE_HOME": str(tmp_path)}))
    assert [check.fix for check in checks if check.what == "left in the spool"] == [
        f"annotq ship --spool {base} --once",
        f"annotq ship --spool {base / 'other_4517'} --once",
    ]


def test_without_a_collector_it_says_where_the_recording_stays() -> None:
    (check,) = collector_checks(None, {})
    assert (check.state, "annotq run" in check.fix) == ("warn", True)


def test_collector_token_and_clock(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb", environment={"ANNOTQ_TOKEN": TOKEN}) as collector:
        good = by_what(collector_checks(collector.address, {"ANNOTQ_TOKEN": TOKEN}))
        assert [check.state for check in good.values()] == ["ok"] * 3, good
        assert "is serving" in good["collector"].found
        found = re.fullmatch(
            r"the collector's is ([+-][\d.]+) ms from this one, known to ([\d.]+) ms", good["clock"].found
        )
        assert found is not None
        # The same clock: the offset is within the error that is said, in the digits that are shown.
        assert abs(float(found[1])) <= float(found[2]) + 0.001
        bad = by_what(collector_checks(collector.address, {"ANNOTQ_TOKEN": "another secret"}))
        assert (bad["collector"].state, bad["token"].state) == ("ok", "FAIL")
        assert "ANNOTQ_TOKEN" in bad["token"].fix


def test_a_store_that_is_in_use_fails_with_what_to_do(tmp_path: Path) -> None:
    with Store(tmp_path / "store.duckdb"):
        done = doctor("--spool", tmp_path, "--db", tmp_path / "store.duckdb")
    assert done.returncode == 1
    assert "FAIL  store: " in done.stdout and "is open in another process" in done.stdout


def test_a_recording_that_is_switched_off_is_said_first(tmp_path: Path) -> None:
    done = doctor("--spool", tmp_path, "--db", tmp_path / "none.duckdb", ANNOTQ_DISABLED="1")
    assert done.stdout.splitlines()[1].startswith("FAIL  recording: ANNOTQ_DISABLED=1")
