"""`annotq doctor` says who gives the nodes of CUDA graphs their ids."""

from __future__ import annotations

import subprocess
import sys

import pytest

from annotq.agent.doctor_ids import PROBE, ids_check


@pytest.mark.parametrize(
    ("name", "why", "state", "words"),
    [
        ("driver", "", "ok", "from the driver"),
        ("cupti", "the driver (CUDA 13.0) has no graph ids", "ok", "from CUPTI: the driver (CUDA 13.0)"),
        ("none", "the package cuda-bindings is too old", "warn", "cuda-bindings is too old"),
        ("none", "torch 2.16.0 is not among the versions known to work (2.14, 2.15)", "warn", "2.16.0"),
    ],
)
def test_the_line_for_each_source(name: str, why: str, state: str, words: str) -> None:
    check = ids_check({"ids": name, "ids_why": why})
    assert check.state == state
    assert words in check.found
    assert bool(check.fix) == (state == "warn")


def test_the_probe_runs_where_there_is_no_gpu() -> None:
    script = f"found = {{}}\n{PROBE}\nprint(found['ids'], found['ids_why'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ("driver", "cupti", "none")
