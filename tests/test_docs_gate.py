"""The GitHub workflow in docs/how-to/ci-gate.md does what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from fences import blocks  # noqa: E402
from test_docs_text import calls, check_call  # noqa: E402

PAGE = ROOT / "docs/how-to/ci-gate.md"


def workflow() -> dict[str, Any]:
    (block,) = [block for block in blocks(PAGE) if block.language == "yaml"]
    return dict(yaml.safe_load(block.text))


def steps() -> dict[str, str]:
    (job,) = workflow()["jobs"].values()
    return {step["name"]: step["run"] for step in job["steps"] if {"run", "name"} <= set(step)}


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As GitHub runs a step: bash -e, the environment of the job, a file for its summary."""
    (job,) = workflow()["jobs"].values()
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), **job["env"]}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment | {"GITHUB_STEP_SUMMARY": str(folder / "summary")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_profiled_runs_are_command_lines_that_annotq_takes() -> None:
    found = list(calls(steps()["Profile both sides"]))
    assert [call[0] for call in found] == ["doctor", "run"]
    for call in found:
        check_call(call)


@pytest.mark.parametrize(("new", "code"), [("control4", 0), ("slow4", 3)])
def test_the_gate_passes_equal_runs_and_stops_a_slower_one(tmp_path: Path, new: str, code: int) -> None:
    # In place of the profiled runs, which need GPUs: recorded ones under the same names.
    for side, data in {"base": "control4", "new": new}.items():
        (tmp_path / side).symlink_to(ROOT / "tests/data" / data)
        assert run(f"annotq ingest {side} --job {side} --quiet", tmp_path).returncode == 0
    compared = run(steps()["Compare"], tmp_path)
    assert compared.returncode == code, compared.stderr
    assert "| step |" in (tmp_path / "summary").read_text()
    assert run(steps()["Report"], tmp_path).returncode == 0
    assert (tmp_path / "comparison.html").stat().st_size > 10_000
