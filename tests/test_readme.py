"""The five questions of the README have answers, and what is generated is what the code gives now.

The README's blocks are run with those of the other pages (tests/test_docs.py).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUESTIONS = re.findall(r"\| `(annotq [^`]+)` \|", (ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "store.duckdb"
    assert run("annotq ingest tests/data/slow4", path).returncode == 0
    return path


def run(command: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "annotq.cli", *shlex.split(command)[1:]],
        cwd=ROOT,
        env={**os.environ, "ANNOTQ_DB": str(store)},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_there_are_five_questions() -> None:
    assert len(QUESTIONS) == 5


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_has_an_answer(question: str, store: Path) -> None:
    answer = run(question, store)
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) > 2


def test_the_demo_in_the_readme_and_the_reference_are_what_the_code_gives_now() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, timeout=90
    )
    assert check.returncode == 0, check.stderr
